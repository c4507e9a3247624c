// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/policy_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace dlsim::sim {
namespace {

constexpr uint64_t kStepBudget = 60'000'000;  // steps simulated in one search: a few seconds
constexpr size_t kStarts = 6;
constexpr int kMostRounds = 16;

// Losses closer to the bound than this are not worth a search.
constexpr double kClose = kLossResolution / 4;

std::vector<int64_t> Intervals(size_t steps) {
  std::vector<int64_t> intervals = {1,  2,   3,   4,   5,   7,   10,  15,   20,   30,   40,   50,
                                    70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000};
  const auto n = static_cast<int64_t>(steps);
  for (const int64_t part : {n / 8, n / 5, n / 4, n / 3, n / 2, n - 2, n - 1, n, n + 1}) {
    if (part > 0) intervals.push_back(part);
  }
  std::sort(intervals.begin(), intervals.end());
  intervals.erase(std::unique(intervals.begin(), intervals.end()), intervals.end());
  return intervals;
}

// Any that the original software ends is worse than all that it does not.
double Objective(const PolicyScore& score) {
  return score.mean_loss + (score.eligible() ? 0.0 : 1.0);
}

bool Better(const PolicyScore& a, const PolicyScore& b) {
  return std::tuple(!a.eligible(), a.mean_loss, a.skipped, a.events) <
         std::tuple(!b.eligible(), b.mean_loss, b.skipped, b.events);
}

}  // namespace

PolicySearch::PolicySearch(const TuneSource& source, const PolicyFamily& family, ScaleTable& table)
    : source_(source), family_(family), table_(table), intervals_(Intervals(table.step_count())) {
  for (const float scale : table.MeasuredScales()) values_.push_back(scale);
  const std::vector<double> least = LeastLosses(table);
  least_loss_ = std::accumulate(least.begin(), least.end(), 0.0) /
                static_cast<double>(std::max<size_t>(1, least.size()));
  budget_ = std::max<uint64_t>(2000, kStepBudget / std::max<size_t>(1, table.step_count()));
}

const PolicyScore* PolicySearch::Score(const ScaleParameters& parameters, double of_interest) {
  const Key key = {parameters.init, parameters.min, parameters.max, parameters.interval,
                   parameters.hysteresis};
  const auto found = scores_.find(key);
  if (found != scores_.end()) {
    if (!found->second) return nullptr;
    const PolicyScore& known = *found->second;
    if (known.exact() || (known.given_up && known.mean_loss >= of_interest)) return &known;
  }
  ++evaluations_;
  auto& score = scores_[key];
  score = ScoreOf(family_, parameters, table_, of_interest);
  if (!score) return nullptr;
  if (score->exact() && (best_ == nullptr || Better(*score, *best_))) best_ = &*score;
  return &*score;
}

std::optional<PolicyScore> PolicySearch::ScoreExactly(const ScaleParameters& parameters) {
  for (int round = 0; round < kMostRounds; ++round) {
    const PolicyScore* score = Score(parameters);
    if (score == nullptr) return std::nullopt;
    if (score->exact()) return *score;
    if (score->inexact.empty()) return std::nullopt;
    const size_t before = table_.MeasuredScales().size();
    const ColumnRequest request = {&table_, score->inexact};
    MeasureColumns(source_, {&request, 1});
    if (table_.MeasuredScales().size() == before) return std::nullopt;
  }
  return std::nullopt;
}

std::vector<PolicyScore> PolicySearch::Ranking() const {
  std::vector<PolicyScore> ranking;
  for (const auto& item : scores_) {
    if (item.second && item.second->exact()) ranking.push_back(*item.second);
  }
  std::ranges::stable_sort(ranking, Better);
  return ranking;
}

double PolicySearch::best_loss() const { return best_ == nullptr ? 1 : best_->mean_loss; }

bool PolicySearch::Finished() const {
  return evaluations_ >= budget_ || best_loss() <= least_loss_ + kClose;
}

// Static scales, and every start with every interval between the widest limits.
void PolicySearch::AddSeeds() {
  const auto never = static_cast<int64_t>(table_.step_count()) + 1;
  for (const double value : values_) {
    if (value < family_.lowest_init) continue;
    Score({value, std::fmax(value, family_.lowest_min), value, never, 1});
    for (const int64_t interval : intervals_) {
      for (const int64_t hysteresis : {1, 2}) {
        if (hysteresis > 1 && family_.hysteresis.empty()) continue;
        Score({value, family_.lowest_min, values_.back(), interval, hysteresis});
      }
    }
  }
}

// All parameters that differ from `from` in one respect.
std::vector<ScaleParameters> PolicySearch::Neighbours(const ScaleParameters& from) const {
  std::vector<ScaleParameters> all;
  const auto add = [&](auto change) {
    ScaleParameters next = from;
    change(next);
    all.push_back(next);
  };
  for (const double value : values_) {
    const double floor = std::fmax(value, family_.lowest_min);
    const double factor = value / from.init;
    if (value >= family_.lowest_init) {
      add([&](ScaleParameters& p) { p.init = value; });
      add([&](ScaleParameters& p) { p.init = value, p.min = floor; });
      add([&](ScaleParameters& p) { p.init = value, p.max = value; });
      add([&](ScaleParameters& p) {
        p.init = value;
        p.min = std::fmax(p.min * factor, family_.lowest_min);
        p.max *= factor;
      });
    }
    if (!family_.min.empty()) add([&](ScaleParameters& p) { p.min = floor; });
    if (!family_.max.empty()) add([&](ScaleParameters& p) { p.max = value; });
    if (!family_.max.empty()) add([&](ScaleParameters& p) { p.min = floor, p.max = value; });
  }
  for (const int64_t interval : intervals_) {
    add([&](ScaleParameters& p) { p.interval = interval; });
  }
  for (int64_t near = from.interval - 8; near <= from.interval + 8; ++near) {
    if (near > 0) add([&](ScaleParameters& p) { p.interval = near; });
  }
  if (!family_.hysteresis.empty()) {
    for (const int64_t count : {1, 2, 3, 4}) {
      add([&](ScaleParameters& p) { p.hysteresis = count; });
    }
  }
  return all;
}

void PolicySearch::Descend(const ScaleParameters& from) {
  const PolicyScore* best = Score(from);
  for (bool improved = best != nullptr; improved && evaluations_ < budget_;) {
    improved = false;
    for (const ScaleParameters& next : Neighbours(best->parameters)) {
      const PolicyScore* score = Score(next, best->eligible() ? best->mean_loss : 1);
      if (score == nullptr || Objective(*score) >= Objective(*best) - kLossResolution / 64) {
        continue;
      }
      best = score;
      improved = true;
    }
  }
}

void PolicySearch::DescendFromBest(size_t count) {
  std::vector<PolicyScore> starts;
  for (const auto& item : scores_) {
    if (item.second) starts.push_back(*item.second);
  }
  std::ranges::stable_sort(starts, Better);
  // Starts with one loss lead to the same place.
  double last = -1;
  for (const PolicyScore& start : starts) {
    if (count == 0 || Finished()) return;
    if (start.mean_loss == last) continue;
    last = start.mean_loss;
    Descend(start.parameters);
    --count;
  }
}

// Changes several parameters at once, as no descent along one does: anywhere, or around the best.
void PolicySearch::RandomSteps(size_t count) {
  std::mt19937_64 random(1);
  const auto pick = [&](const auto& list) { return list[random() % list.size()]; };
  for (size_t i = 0; i < count && !Finished(); ++i) {
    const ScaleParameters anywhere = {pick(values_), pick(values_), pick(values_), pick(intervals_),
                                      1};
    ScaleParameters next = anywhere;
    if (best_ != nullptr && i % 2 == 1) {
      next = best_->parameters;
      const uint64_t changed = random();
      if ((changed & 1) != 0) next.init = anywhere.init;
      if ((changed & 2) != 0) next.min = anywhere.min;
      if ((changed & 4) != 0) next.max = anywhere.max;
      if ((changed & 8) != 0) next.interval = anywhere.interval;
    }
    next.init = std::fmax(next.init, family_.lowest_init);
    next.min = std::fmax(next.min, family_.lowest_min);
    Score(next, best_loss());
  }
}

// Between two powers of two the best scale is one at which some step just does not overflow: a
// higher scale loses less.
void PolicySearch::AddLimitsToValues() {
  const std::vector<float> between = ScalesBetweenPowers(source_, table_);
  values_.insert(values_.end(), between.begin(), between.end());
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
}

// Measures the scales of those whose bound is below the best known loss. Returns false if there are
// none, or the source has no answer.
bool PolicySearch::MeasurePromising() {
  const double best = best_loss();
  std::vector<const PolicyScore*> promising;
  for (const auto& item : scores_) {
    if (!item.second || item.second->exact() || item.second->given_up) continue;
    if (item.second->mean_loss < best - kClose) promising.push_back(&*item.second);
  }
  std::ranges::sort(promising, {}, [](const PolicyScore* score) { return score->mean_loss; });
  if (promising.size() > 16) promising.resize(16);
  ColumnRequest request = {&table_, {}};
  for (const PolicyScore* score : promising) {
    request.scales.insert(request.scales.end(), score->inexact.begin(), score->inexact.end());
  }
  const size_t before = table_.MeasuredScales().size();
  MeasureColumns(source_, {&request, 1});
  if (table_.MeasuredScales().size() == before) return false;
  std::vector<ScaleParameters> again;
  for (const auto& item : scores_) {
    if (item.second && !item.second->exact() && item.second->mean_loss < best - kClose) {
      again.push_back(item.second->parameters);
    }
  }
  for (const ScaleParameters& parameters : again) Score(parameters, best);
  return true;
}

void PolicySearch::Run() {
  AddSeeds();
  if (Finished()) return;
  DescendFromBest(kStarts);
  RandomSteps(4000);
  DescendFromBest(kStarts);
  if (Finished()) return;
  AddLimitsToValues();
  for (int round = 0; round < kMostRounds && !Finished(); ++round) {
    DescendFromBest(kStarts);
    if (!MeasurePromising()) break;
  }
  RandomSteps(4000);
  DescendFromBest(kStarts);
  for (int round = 0; round < kMostRounds && MeasurePromising(); ++round) {
  }
}

}  // namespace dlsim::sim
