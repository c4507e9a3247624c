// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "dlsim/ladder.h"
#include "sim/base/number.h"
#include "sim/tune/policy_family.h"
#include "sim/tune/policy_score.h"

namespace dlsim::sim {
namespace {

constexpr int kHeadroomBinades = 2;

// The floor stays this many binades below the lowest scale that a step needed.
constexpr int kFloorMargin = 2;

double PowerBelow(double value) { return std::exp2(std::floor(std::log2(value))); }

// Returns 1 if it is in an ascending list of scales, so that none is needed; else the highest that
// leaves two binades of head-room.
double SensibleAmong(const std::vector<double>& scales) {
  if (scales.front() <= 1 && scales.back() >= 1 && std::ranges::count(scales, 1.0) > 0) return 1;
  const double with_room = std::ldexp(scales.back(), -kHeadroomBinades);
  const auto beyond = std::ranges::upper_bound(scales, with_room);
  return beyond == scales.begin() ? scales.front() : *std::prev(beyond);
}

// The scales next to each other in `all`, of which one has the least loss, that lose the same.
std::vector<double> EqualNeighbours(const std::vector<std::pair<double, double>>& all,
                                    double target) {
  const auto least =
      std::ranges::min_element(all, {}, [](const auto& item) { return item.second; });
  auto first = least, last = least;
  while (first != all.begin() && std::prev(first)->second <= target) --first;
  while (std::next(last) != all.end() && std::next(last)->second <= target) ++last;
  std::vector<double> scales;
  for (auto item = first; item <= last; ++item) scales.push_back(item->first);
  return scales;
}

double LowestLimit(const ScaleTable& table) {
  double lowest = std::ldexp(1.0, kHighestScaleExponent);
  for (const StepFacts& fact : table.facts()) {
    if (!fact.hopeless) lowest = std::fmin(lowest, fact.limit);
  }
  return lowest;
}

// Turns a good set of parameters into a sensible one, change by change.
class Simplifier {
 public:
  // Begins with the best of a ranking, which is not empty.
  Simplifier(PolicySearch& search, const PolicyFamily& family, const ScaleTable& table,
             const std::vector<PolicyScore>& ranking)
      : search_(search), family_(family), table_(table), current_(ranking.front()) {
    target_ = ranking.front().mean_loss + kLossResolution / 2;
    most_skipped_ = current_.skipped;
    for (const PolicyScore& score : ranking) {
      if (score.mean_loss > target_ || score.eligible() != current_.eligible()) break;
      // Of those that lose the same, one that skips less and has its start between floor and
      // ceiling.
      const auto key = [&](const PolicyScore& s) {
        const double init = s.parameters.init;
        const bool odd = init < Lowest(s.parameters) || init > Highest(s.parameters);
        return std::pair(s.skipped, odd);
      };
      if (key(score) < key(current_)) current_ = score;
    }
    most_skipped_ = current_.skipped;
  }

  PolicyScore Run() {
    for (const double init : {BestStatic(table_).scale, BestStatic(table_, PreferredMin()).scale,
                              1.0, family_.defaults.init}) {
      if (Try(PreferredFrom(init))) return current_;
    }
    Change(
        [&](ScaleParameters& p) { p.init = std::fmin(std::fmax(p.init, Lowest(p)), Highest(p)); });
    // Twice, as one change can make room for another.
    for (int round = 0; round < 2; ++round) {
      Change([&](ScaleParameters& p) { p.hysteresis = family_.defaults.hysteresis; });
      Change([&](ScaleParameters& p) { p.max = PreferredMax(p.init); });
      Interval();
      Floor();
      Start();
    }
    ShortenNumbers();
    return current_;
  }

 private:
  // Takes the parameters over if they lose no more.
  bool Try(const ScaleParameters& parameters) {
    const std::optional<PolicyScore> score = search_.ScoreExactly(parameters);
    if (!score || score->mean_loss > target_ || score->skipped > most_skipped_) return false;
    if (current_.eligible() && !score->eligible()) return false;
    current_ = *score;
    return true;
  }

  template <class F>
  bool Change(const F& change) {
    ScaleParameters next = current_.parameters;
    change(next);
    return next == current_.parameters || Try(next);
  }

  // Between these the scale moves.
  double Lowest(const ScaleParameters& p) const { return family_.min.empty() ? 0 : p.min; }
  double Highest(const ScaleParameters& p) const {
    return family_.max.empty() ? std::numeric_limits<double>::infinity() : p.max;
  }

  double PreferredMin() const {
    if (family_.min.empty()) return 0;
    const double needed = std::ldexp(PowerBelow(LowestLimit(table_)), -kFloorMargin);
    // The documented 2e-14 of Cerebras is a misprint.
    const double own = family_.defaults.min >= 0x1p-14 ? family_.defaults.min : 0x1p-14;
    return std::fmax(std::fmin(own, needed), family_.lowest_min);
  }

  double PreferredMax(double init) const {
    if (family_.max.empty()) return 0;
    const int bias = table_.prototype().conversion.format.bias;
    const double exponent = std::ldexp(1.0, std::min(bias, kHighestScaleExponent));
    const double own = IsPowerOfTwo(family_.defaults.max) ? family_.defaults.max : exponent;
    const double with_room = std::ldexp(PowerBelow(init), kFloorMargin);
    return own >= init ? own : with_room;
  }

  ScaleParameters PreferredFrom(double static_scale) const {
    const double init = std::fmax(static_scale, family_.lowest_init);
    return {init, PreferredMin(), PreferredMax(init), family_.defaults.interval,
            family_.defaults.hysteresis};
  }

  // The stack's default, or the round number nearest to it.
  void Interval() {
    std::vector<int64_t> round = {family_.defaults.interval, current_.parameters.interval};
    for (int64_t decade = 1; decade <= 10'000; decade *= 10) {
      for (const int64_t digit : {1, 2, 5}) round.push_back(digit * decade);
    }
    const double own = std::log2(static_cast<double>(family_.defaults.interval));
    std::ranges::stable_sort(round, {}, [&](int64_t interval) {
      return std::fabs(std::log2(static_cast<double>(interval)) - own);
    });
    for (const int64_t interval : round) {
      if (Change([&](ScaleParameters& p) { p.interval = interval; })) return;
    }
  }

  // The lowest power of two that will do, but not below the preferred one.
  void Floor() {
    if (family_.min.empty()) return;
    for (double min = PreferredMin(); min < current_.parameters.min; min *= 2) {
      if (Change([&](ScaleParameters& p) { p.min = min; })) return;
    }
  }

  // The sensible power of two among those that will do as a start.
  void Start() {
    std::vector<std::pair<double, double>> starts;
    for (int exponent = kLowestScaleExponent; exponent <= kHighestScaleExponent; ++exponent) {
      ScaleParameters next = current_.parameters;
      next.init = std::ldexp(1.0, exponent);
      if (next.init < std::fmax(family_.lowest_init, Lowest(next))) continue;
      if (next.init > Highest(next)) break;
      const std::optional<PolicyScore> score = search_.ScoreExactly(next);
      const bool same =
          score && score->skipped <= most_skipped_ && (score->eligible() || !current_.eligible());
      starts.emplace_back(next.init, same ? score->mean_loss : 2.0);
    }
    const auto good = [&](const auto& start) { return start.second <= target_; };
    if (std::ranges::none_of(starts, good)) return;
    const double init = SensibleAmong(EqualNeighbours(starts, target_));
    Change([&](ScaleParameters& p) { p.init = init; });
  }

  // Scales that are no powers of two, rounded down to as few digits as will do.
  void ShortenNumbers() {
    for (double ScaleParameters::*field :
         {&ScaleParameters::max, &ScaleParameters::min, &ScaleParameters::init}) {
      const double value = current_.parameters.*field;
      if (value == 0 || IsPowerOfTwo(value)) continue;
      for (int digits = 2; digits <= 7; ++digits) {
        const double unit = std::pow(10.0, std::floor(std::log10(value)) + 1 - digits);
        const double floor = std::floor(value / unit) * unit;
        const double shorter = ParseNumber(fmt::format("{:.{}e}", floor, digits - 1), "scale");
        if (Change([&](ScaleParameters& p) { Replace(p, value, shorter); })) break;
      }
    }
  }

  // Equal scales stay equal, as a floor above the start would be an error.
  static void Replace(ScaleParameters& parameters, double value, double shorter) {
    for (double* scale : {&parameters.init, &parameters.min, &parameters.max}) {
      if (*scale == value) *scale = shorter;
    }
  }

  PolicySearch& search_;
  const PolicyFamily& family_;
  const ScaleTable& table_;
  double target_ = 0;
  uint64_t most_skipped_ = 0;
  PolicyScore current_;
};

}  // namespace

StaticChoice BestStatic(const ScaleTable& table, double lowest) {
  std::vector<std::pair<double, double>> powers, all;
  for (const float scale : table.MeasuredScales()) {
    if (double{scale} < lowest) continue;
    const double loss = StaticLoss(*table.Find(scale));
    all.emplace_back(scale, loss);
    if (IsPowerOfTwo(scale)) powers.emplace_back(scale, loss);
  }
  if (all.empty()) return BestStatic(table);  // a ladder that ends below `lowest`
  const auto least = [](const auto& list) {
    return std::ranges::min_element(list, {}, [](const auto& item) { return item.second; });
  };
  const double target = least(all)->second + kLossResolution / 2;
  StaticChoice choice;
  if (powers.empty() || least(powers)->second > target) {
    choice.scale = choice.low = choice.high = least(all)->first;
  } else {
    const std::vector<double> equal = EqualNeighbours(powers, target);
    choice.scale = SensibleAmong(equal);
    choice.low = equal.front();
    choice.high = equal.back();
  }
  const ScaleColumn& column = *table.Find(static_cast<float>(choice.scale));
  choice.mean_loss = StaticLoss(column);
  choice.nonfinite_steps =
      static_cast<uint64_t>(std::count(column.finite.begin(), column.finite.end(), 0));
  return choice;
}

PolicyChoice Recommend(PolicySearch& search, const PolicyFamily& family, const ScaleTable& table) {
  const std::vector<PolicyScore> ranking = search.Ranking();
  PolicyChoice choice = {.family = family, .score = {}};
  choice.score = Simplifier(search, family, table, ranking).Run();
  choice.best_loss = search.best_loss();
  choice.evaluations = search.evaluations();
  for (const PolicyScore& score : ranking) {
    const bool better = score.mean_loss < choice.score.mean_loss - kLossResolution;
    if (score.eligible() || !better) continue;
    choice.with_errors = score;
    break;
  }
  choice.optimal = choice.score.mean_loss <= search.least_loss() + kLossResolution;
  return choice;
}

}  // namespace dlsim::sim
