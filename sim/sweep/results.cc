// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/base/rows.h"
#include "sim/base/table.h"
#include "sim/policies/policy.h"
#include "sim/replay/results.h"

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double KeyOf(const SweepOutcome& outcome, RankBy by) {
  switch (by) {
    case RankBy::kSkipped:
      return static_cast<double>(outcome.skipped_steps);
    case RankBy::kEnergyLost:
      return outcome.mean_energy_lost;
    case RankBy::kWorstStep:
      return outcome.skipped_steps == outcome.steps ? kInfinity : outcome.worst_step_energy_lost;
    case RankBy::kFirstApplied:
      return outcome.first_applied_step ? static_cast<double>(*outcome.first_applied_step)
                                        : kInfinity;
    case RankBy::kFinalScale:
      return std::isnan(outcome.final_scale) ? kInfinity : -outcome.final_scale;
    default:
      return outcome.mean_loss.value_or(0);
  }
}

// What ranks runs before head-room does; without windows nothing is known of that, and energy comes
// before.
auto TieKey(const SweepOutcome& o, RankBy by) {
  const double run = o.fatal ? -static_cast<double>(o.steps) : 0;
  return std::tuple(o.fatal.has_value(), run, KeyOf(o, by), o.mean_loss.value_or(0),
                    o.skipped_steps, o.mean_loss ? 0 : o.mean_energy_lost);
}

// Runs of one format, policy and rounding that tie, and every combination of whose values ties.
struct TiedRuns {
  size_t best = 0;                  // the one that ranks first
  size_t count = 0;                 // of runs
  std::vector<std::string> values;  // of AxisKeys, as text; ranges have the best run's in brackets
};

std::optional<double> NumberOf(const std::string& text) {
  try {
    return ParseNumber(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Merges runs that rank alike into rows: "2^13 to 2^16".
class TieMerger {
 public:
  explicit TieMerger(const SweepResult& result) : result_(result), keys_(AxisKeys(result.grid)) {
    for (const GridPoint& point : result.plan.points) {
      std::vector<Domain>& domains = domains_[point.policy];
      domains.resize(keys_.size());
      for (size_t k = 0; k < keys_.size(); ++k) {
        const std::string& value = point.values[k];
        if (domains[k].places.emplace(value, 0).second) domains[k].values.push_back(value);
      }
    }
    for (auto& [policy, domains] : domains_) {
      for (Domain& domain : domains) {
        domain.numbers = std::ranges::all_of(
            domain.values, [](const std::string& value) { return NumberOf(value).has_value(); });
        if (domain.numbers) std::ranges::stable_sort(domain.values, {}, NumberOf);
        for (size_t i = 0; i < domain.values.size(); ++i) domain.places[domain.values[i]] = i;
      }
    }
  }

  // Merges runs that tie, the best first; so are the rows, but for those of one format, rounding
  // and policy, which come together. Key by key, boxes that differ in its places only become one.
  std::vector<TiedRuns> Merge(std::span<const size_t> tied) const {
    std::vector<Box> boxes = BoxesOf(tied);
    for (size_t k = 0; k < keys_.size(); ++k) {
      std::map<std::pair<size_t, Places>, size_t> index;
      std::vector<Box> merged;
      for (Box& box : boxes) {
        const std::set<size_t> places = std::exchange(box.places[k], {});
        const auto [place, added] = index.try_emplace({box.group, box.places}, merged.size());
        if (added) merged.push_back({box.group, box.places, box.best, 0});
        Box& into = merged[place->second];
        into.count += box.count;
        into.places[k].insert(places.begin(), places.end());
      }
      boxes = std::move(merged);
    }
    std::vector<TiedRuns> rows;
    for (const Box& box : boxes) {
      const GridPoint& point = result_.plan.points[box.best];
      TiedRuns& row = rows.emplace_back(TiedRuns{box.best, box.count, {}});
      for (size_t k = 0; k < keys_.size(); ++k) {
        const Domain& domain = domains_.at(point.policy)[k];
        const size_t best = domain.places.at(point.values[k]);
        const std::vector<size_t> places(box.places[k].begin(), box.places[k].end());
        row.values.push_back(TextOf(domain, keys_[k], places, best));
      }
    }
    return rows;
  }

 private:
  // The values that the runs of one policy have of a key, in order, and the place of each.
  struct Domain {
    std::vector<std::string> values;
    std::map<std::string, size_t> places;
    bool numbers = true;
  };
  using Places = std::vector<std::set<size_t>>;  // [key]

  // Runs whose values are all combinations of these places.
  struct Box {
    size_t group = 0;  // of those with the same format, rounding and policy
    Places places;
    size_t best = 0;
    size_t count = 1;
  };

  std::vector<Box> BoxesOf(std::span<const size_t> tied) const {
    std::vector<Box> boxes;
    std::map<std::tuple<size_t, size_t, const PolicyInfo*>, size_t> groups;
    for (const size_t run : tied) {
      const GridPoint& point = result_.plan.points[run];
      const auto group =
          groups.try_emplace({point.format, point.rounding, point.policy}, groups.size()).first;
      Box& box = boxes.emplace_back(Box{.group = group->second, .places = {}, .best = run});
      for (size_t k = 0; k < keys_.size(); ++k) {
        box.places.push_back({domains_.at(point.policy)[k].places.at(point.values[k])});
      }
    }
    std::ranges::stable_sort(boxes, {}, &Box::group);
    return boxes;
  }

  static std::string TextOf(const Domain& domain, const std::string& key,
                            std::span<const size_t> places, size_t best) {
    constexpr size_t kMostRanges = 3;  // in a cell
    const auto text_at = [&](size_t place) {
      return Printable(ParameterText(key, domain.values[place]));
    };
    std::string text;
    size_t ranges = 0;
    for (size_t i = 0; i < places.size() && ranges <= kMostRanges; ++ranges) {
      size_t last = i;
      while (domain.numbers && last + 1 < places.size() && places[last + 1] == places[last] + 1) {
        ++last;
      }
      if (last < i + 2) last = i;  // two neighbors are no range
      if (ranges > 0) text += ", ";
      text += ranges == kMostRanges ? "..." : text_at(places[i]);
      if (last > i && ranges < kMostRanges) text += " to " + text_at(places[last]);
      i = last + 1;
    }
    return places.size() == 1 ? text : fmt::format("{} ({})", text, text_at(best));
  }

  const SweepResult& result_;
  std::vector<std::string> keys_;
  std::map<const PolicyInfo*, std::vector<Domain>> domains_;  // of the keys
};

constexpr size_t kMaxFront = 20;    // lines of the Pareto front
constexpr size_t kMaxRefused = 10;  // reasons
constexpr std::string_view kDispensable[] = {"first applied", "runs",       "run",
                                             "below",         "worst step", "final scale"};

bool SearchedWindows(const SweepResult& result) {
  return !result.run.outcomes.empty() && result.run.outcomes.front().mean_loss;
}

TableRow HeaderOf(const SweepResult& result, const char* last) {
  TableRow row = {"format policy"};
  if (result.grid.roundings.size() > 1) row.emplace_back("rounding");
  for (const std::string& key : AxisKeys(result.grid)) row.push_back(Printable(key));
  for (const char* name : {"skipped", "first applied", "final scale"}) row.emplace_back(name);
  const bool windows = SearchedWindows(result);
  row.emplace_back(windows ? "below" : "energy lost");
  row.emplace_back(windows ? "gradient lost" : "worst step");
  row.emplace_back(last);
  return row;
}

TableRow RowOf(const SweepResult& result, const TiedRuns& runs, std::string last) {
  const SweepOutcome& o = result.run.outcomes[runs.best];
  const GridPoint& point = result.plan.points[runs.best];
  TableRow row = {result.plan.formats[point.format].name + " " + std::string(point.policy->name)};
  if (result.grid.roundings.size() > 1) {
    row.push_back(result.grid.roundings[point.rounding]);
  }
  row.insert(row.end(), runs.values.begin(), runs.values.end());
  row.insert(row.end(), {fmt::format("{}/{}{}", o.skipped_steps, o.steps, o.fatal ? " ended" : ""),
                         o.first_applied_step ? std::to_string(*o.first_applied_step) : "never",
                         ScaleText(o.final_scale)});
  if (o.mean_loss) {
    row.push_back(std::to_string(o.steps_below_window));
    row.push_back(Percent(*o.mean_loss));
  } else {
    row.push_back(Percent(o.mean_energy_lost));
    row.push_back(Percent(o.worst_step_energy_lost));
  }
  row.push_back(std::move(last));
  return row;
}

// The best runs; those that tie share lines.
std::string TopTable(const SweepResult& result, const TieMerger& merger, uint64_t top) {
  std::vector<TableRow> rows = {HeaderOf(result, "runs")};
  const std::span<const size_t> order = result.order;
  for (size_t i = 0; i < order.size() && rows.size() <= top;) {
    const auto key = [&](size_t at) { return TieKey(result.run.outcomes[order[at]], result.sort); };
    size_t end = i + 1;
    while (end < order.size() && key(i) == key(end)) ++end;
    for (const TiedRuns& runs : merger.Merge(order.subspan(i, end - i))) {
      if (rows.size() <= top) rows.push_back(RowOf(result, runs, std::to_string(runs.count)));
    }
    i = end;
  }
  return FormatTable(rows, kDispensable);
}

// Each pair of the front, with all runs that come to it.
std::string FrontTable(const SweepResult& result, const TieMerger& merger) {
  const auto pair_of = [&](size_t run) {
    const SweepOutcome& o = result.run.outcomes[run];
    return std::tuple(o.fatal.has_value(), o.skipped_steps,
                      o.mean_loss.value_or(o.mean_energy_lost));
  };
  std::map<decltype(pair_of(0)), std::vector<size_t>> tied;
  for (const size_t run : result.pareto) tied[pair_of(run)];
  for (const size_t run : Rank(result.run.outcomes, result.wide, RankBy::kSkipped)) {
    const auto found = tied.find(pair_of(run));
    if (found != tied.end()) found->second.push_back(run);
  }
  std::vector<TableRow> rows = {HeaderOf(result, "run")};
  size_t more = 0;
  for (const size_t run : result.pareto) {
    for (const TiedRuns& runs : merger.Merge(tied[pair_of(run)])) {
      if (rows.size() > kMaxFront) {
        ++more;
      } else {
        rows.push_back(RowOf(result, runs, "#" + std::to_string(runs.best)));
      }
    }
  }
  return FormatTable(rows, kDispensable) +
         (more > 0 ? fmt::format("  and {} more: --json\n", more) : "");
}

std::string RefusedLines(const SweepPlan& plan) {
  std::string text;
  for (size_t i = 0; i < std::min(kMaxRefused, plan.refused.size()); ++i) {
    const RefusedPoints& refused = plan.refused[i];
    text += fmt::format("refused: {} of {}: {}\n", Counted(refused.count, "point"), refused.policy,
                        Printable(refused.reason));
  }
  if (plan.refused.size() > kMaxRefused) {
    text += fmt::format("refused: {}: --json\n",
                        Counted(plan.refused.size() - kMaxRefused, "more reason"));
  }
  return text;
}

}  // namespace

inline void Rows(const SweepOutcome& of, RowSink& row) {
  const auto if_searched = [&](const uint64_t& steps) { return of.mean_loss ? &steps : nullptr; };
  PathRows(of, of.fatal ? std::optional(of.fatal->step) : std::nullopt, row);
  row.Group(of.gradients);
  row("worst_step_energy_lost", of.worst_step_energy_lost, kWorstEnergyLost);
  row("mean_energy_lost", of.mean_energy_lost,
      "mean `energy_lost` of the applied steps; 1 if none was applied");
  row("steps_below_window", if_searched(of.steps_below_window),
      "applied steps whose scale was below their window; null without windows");
  row("steps_with_headroom", if_searched(of.steps_with_headroom),
      "applied steps at least two binades below overflow; null without windows");
  row("mean_loss", of.mean_loss,
      "gradient lost: mean over all steps of what a step loses; null without windows");
}

inline void Rows(const RefusedPoints& of, RowSink& row) {
  row("policy", of.policy, "that refuses its parameters");
  row("reason", of.reason, "what it says");
  row("count", of.count, "of points of the grid");
}

namespace {

// A run, in JSON and CSV.
struct SweepRow {
  std::string format;
  std::string_view policy;
  std::string rounding;
  std::vector<NamedValue> parameters;
  SweepOutcome outcome;
};

inline void Rows(const SweepRow& of, RowSink& row) {
  row("format", of.format, "canonical name");
  row("policy", of.policy, "canonical name");
  row("rounding", of.rounding, "how values are rounded");
  row("params", of.parameters, "all parameters of the policy");
  row("summary", of.outcome, "over all steps");
}

SweepRow RowAt(const SweepResult& result, size_t run) {
  const GridPoint& point = result.plan.points[run];
  return {result.plan.formats[point.format].name,
          point.policy->name,
          result.grid.roundings[point.rounding],
          {},
          result.run.outcomes[run]};
}

struct SweepRecord {
  TellRows trace, options, verdict;
  std::span<const TellRows> other_verdicts;
  std::function<void(const std::function<void(const SweepRow&)>& take)> runs;
  std::span<const size_t> pareto;
  std::span<const RefusedPoints> refused;
};

inline void Rows(const SweepRecord& of, RowSink& row) {
  row("schema", "dlsim.sweep/1", "", kOnLines);
  row("trace", of.trace, "what was read", kOnLines);
  row("options", of.options, "those of the command", kOnLines);
  row("verdict", of.verdict,
      "as of a replay, with `rounding`, where values are rounded as the grid says first; null if "
      "no windows were searched",
      kOnLines | kNullIfEmpty);
  row("verdicts_of_other_roundings", of.other_verdicts, "the same, if there are any",
      kOnLine | kLeftOutIfEmpty);
  row.Stream<SweepRow>("runs", "one object per point of the grid, in order", of.runs, kOnLines);
  row("pareto", of.pareto, "numbers of the runs of the front", kOnLines);
  row("refused", of.refused, "points whose policy refused its parameters", kOnLines);
}

}  // namespace

std::vector<size_t> Rank(std::span<const SweepOutcome> outcomes, const std::vector<bool>& wide,
                         RankBy by) {
  std::vector<size_t> order(outcomes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const SweepOutcome& o = outcomes[i];
    const double scale = std::isnan(o.min_scale) ? 0 : o.min_scale;
    return std::tuple(TieKey(o, by), -static_cast<double>(o.steps_with_headroom),
                      o.mean_energy_lost, wide[i] ? scale : -scale, i);
  };
  std::ranges::sort(order, [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<size_t> ParetoFront(std::span<const SweepOutcome> outcomes,
                                const std::vector<bool>& wide) {
  std::vector<size_t> order = Rank(outcomes, wide, RankBy::kSkipped);
  const auto ended = [&](size_t i) { return outcomes[i].fatal.has_value(); };
  if (!std::ranges::all_of(order, ended)) std::erase_if(order, ended);
  const auto lost = [&](size_t i) {
    return outcomes[i].mean_loss.value_or(outcomes[i].mean_energy_lost);
  };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return std::pair(outcomes[a].skipped_steps, lost(a)) <
           std::pair(outcomes[b].skipped_steps, lost(b));
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || lost(i) < lost(front.back())) front.push_back(i);
  }
  return front;
}

SweepResult ResultOf(const SweepGrid& grid, const SweepPlan& plan, RankBy sort, SweepRun run) {
  SweepResult result = {.grid = grid, .plan = plan, .sort = sort, .run = std::move(run)};
  for (const GridPoint& point : plan.points) {
    result.wide.push_back(HasRangeOfFloat32(plan.formats[point.format].format));
  }
  result.order = Rank(result.run.outcomes, result.wide, sort);
  result.pareto = ParetoFront(result.run.outcomes, result.wide);
  return result;
}

std::string FormatSweepAdvice(const SweepResult& result) {
  if (result.run.verdicts.empty()) {
    return Wrap("No verdict: only --sort loss, the default, looks for the safe loss scales.");
  }
  std::string text;
  for (const SweepAdvice& verdict : result.run.verdicts) {
    const bool several = result.run.verdicts.size() > 1;
    if (several) text += fmt::format("rounding {}:\n", NameOf(verdict.rounding));
    text += FormatAdviceLines(verdict.advice);
  }
  return text;
}

std::string FormatSweep(const SweepResult& result, uint64_t top) {
  const TieMerger merger(result);
  std::string text = Counted(result.run.outcomes.size(), "run") + "\n" + RefusedLines(result.plan);
  text += "\nbest:\n" + TopTable(result, merger, top);
  const bool windows = SearchedWindows(result);
  text += fmt::format("\nPareto front of skipped steps against {}:\n",
                      windows ? "gradient lost" : "energy lost");
  text += FrontTable(result, merger);
  text += "\n";
  const std::string ranges =
      "  a to b (c): settings with equal results; the row shows the one in brackets";
  if (!windows) {
    return text +
           Wrap(
               "  energy lost: share of a step's sum of squares that becomes zero, mean over "
               "applied steps; worst step: the largest of these.") +
           Wrap(ranges + ".");
  }
  return text +
         Wrap(
             "  gradient lost: mean loss per step: 1 if it is skipped, its expected harm if the "
             "scale was too low, else 0; below: steps at which the scale was too low.") +
         Wrap(ranges + ", which has two binades of head-room if any has.");
}

void WriteSweepJson(const TellRows& trace, const TellRows& options, const SweepResult& result,
                    OutputFile& out) {
  std::vector<TellRows> verdicts;
  for (const SweepAdvice& verdict : result.run.verdicts) {
    verdicts.push_back(RowsOf(verdict.advice, NameOf(verdict.rounding)));
  }
  const auto runs = [&](const std::function<void(const SweepRow&)>& take) {
    const NoProjections notes_are_not_read;
    for (size_t run = 0; run < result.run.outcomes.size(); ++run) {
      SweepRow row = RowAt(result, run);
      const GridPoint& point = result.plan.points[run];
      row.parameters = point.policy->make(ParametersOf(result.grid, point), row.format).parameters;
      take(row);
    }
  };
  const std::span<const TellRows> all = verdicts;
  WriteJson(SweepRecord{trace, options, all.empty() ? TellRows() : all.front(),
                        all.subspan(all.empty() ? 0 : 1), runs, result.pareto, result.plan.refused},
            out);
}

void WriteSweepCsv(const SweepResult& result, OutputFile& out) {
  std::string header = "run,format,policy,rounding";
  for (const std::string& key : AxisKeys(result.grid)) header += "," + CsvField(key);
  out.Write(header + "," + CsvNames([](RowSink& row) { Rows(SweepOutcome(), row); }) + "\n");
  for (size_t run = 0; run < result.run.outcomes.size(); ++run) {
    const SweepRow of = RowAt(result, run);
    std::string line = fmt::format("{},{}", run, CsvValues([&](RowSink& row) { Rows(of, row); }));
    for (const std::string& value : result.plan.points[run].values) line += "," + CsvField(value);
    out.Write(line + "," + CsvValues([&](RowSink& row) { Rows(of.outcome, row); }) + "\n");
  }
}

void AddSweepKeys(std::vector<KeyTable>& tables) { AddKeys<SweepRecord>("", tables); }

}  // namespace dlsim::sim
