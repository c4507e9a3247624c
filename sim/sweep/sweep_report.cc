// SPDX-License-Identifier: Apache-2.0
// The readable report of a sweep.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "dlsim/error.h"
#include "sim/advice/advice_text.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/sweep/sweep_output.h"
#include "sim/sweep/tied_runs.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMaxFront = 20;    // lines of the Pareto front
constexpr size_t kMaxRefused = 10;  // reasons
constexpr std::string_view kDispensable[] = {"first applied", "runs",       "run",
                                             "below",         "worst step", "final scale"};

bool SearchedWindows(const SweepResult& result) {
  return !result.outcomes.empty() && result.outcomes.front().mean_loss;
}

TableRow HeaderOf(const SweepResult& result, const char* last) {
  TableRow row = {"format policy"};
  if (result.setup.roundings.size() > 1) row.emplace_back("rounding");
  for (const std::string& key : AxisKeys(result.setup.grid)) row.push_back(Printable(key));
  for (const char* name : {"skipped", "first applied", "final scale"}) row.emplace_back(name);
  const bool windows = SearchedWindows(result);
  row.emplace_back(windows ? "below" : "energy lost");
  row.emplace_back(windows ? "gradient lost" : "worst step");
  row.emplace_back(last);
  return row;
}

TableRow RowOf(const SweepResult& result, const TiedRuns& runs, std::string last) {
  const SweepOutcome& o = result.outcomes[runs.best];
  const GridPoint& point = result.plan.points[runs.best];
  TableRow row = {result.plan.formats[point.format].name + " " + std::string(point.policy->name)};
  if (result.setup.roundings.size() > 1) {
    row.push_back(result.setup.grid.roundings[point.rounding]);
  }
  row.insert(row.end(), runs.values.begin(), runs.values.end());
  const char* const about = o.exact ? "" : "~";
  row.insert(row.end(), {fmt::format("{}/{}{}", o.skipped_steps, o.steps, o.fatal ? " ended" : ""),
                         o.first_applied_step ? std::to_string(*o.first_applied_step) : "never",
                         ScaleText(o.final_scale)});
  if (o.mean_loss) {
    row.push_back(std::to_string(o.steps_below_window));
    row.push_back(Percent(*o.mean_loss));
  } else {
    row.push_back(about + Percent(o.mean_energy_lost));
    row.push_back(about + Percent(o.worst_step_energy_lost));
  }
  row.push_back(std::move(last));
  return row;
}

// The best runs; those that tie share lines.
std::string TopTable(const SweepResult& result, const TieMerger& merger, uint64_t top) {
  std::vector<TableRow> rows = {HeaderOf(result, "runs")};
  const std::span<const size_t> order = result.order;
  for (size_t i = 0; i < order.size() && rows.size() <= top;) {
    size_t end = i + 1;
    while (end < order.size() &&
           Tied(result.outcomes[order[i]], result.outcomes[order[end]], result.sort)) {
      ++end;
    }
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
    const SweepOutcome& o = result.outcomes[run];
    return std::tuple(o.fatal.has_value(), o.skipped_steps,
                      o.mean_loss.value_or(o.mean_energy_lost));
  };
  std::map<decltype(pair_of(0)), std::vector<size_t>> tied;
  for (const size_t run : result.pareto) tied[pair_of(run)];
  for (const size_t run : Rank(result.outcomes, result.prefers, RankBy::kSkipped)) {
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

std::string FormatSweepAdvice(const SweepResult& result) {
  if (result.verdicts.empty()) {
    return Wrap("No verdict: only --sort loss, the default, looks for the safe loss scales.");
  }
  std::string text;
  for (const SweepAdvice& verdict : result.verdicts) {
    const bool several = result.verdicts.size() > 1;
    if (several) text += fmt::format("rounding {}:\n", NameOf(verdict.rounding));
    text += FormatAdviceLines(verdict.advice);
  }
  return text;
}

std::string FormatSweep(const SweepResult& result, uint64_t top) {
  const auto inexact = std::ranges::count_if(
      result.outcomes, [](const SweepOutcome& outcome) { return !outcome.exact; });
  const TieMerger merger(result);
  std::string text = Counted(result.outcomes.size(), "run") + "\n" + RefusedLines(result.plan);
  text += "\nbest:\n" + TopTable(result, merger, top);
  const bool windows = SearchedWindows(result);
  text += fmt::format("\nPareto front of skipped steps against {}:\n",
                      windows ? "gradient lost" : "energy lost");
  text += FrontTable(result, merger);
  text +=
      "\n" +
      Wrap(windows
               ? "  gradient lost: mean loss per step: 1 if it is skipped, its expected harm if "
                 "the scale was too low, else 0; below: steps at which the scale was too "
                 "low."
               : "  energy lost: share of a step's sum of squares that becomes zero, mean "
                 "over applied steps; worst step: the largest of these.");
  text += Wrap(
      windows ? "  a to b (c): settings with equal results; the row shows the one in brackets, "
                "which has two binades of head-room if any has."
              : "  a to b (c): settings with equal results; the row shows the one in brackets.");
  if (inexact > 0) {
    text += fmt::format(
        "  ~: {} more than the profile is exact for; --json has the bounds.\n",
        Counted(static_cast<uint64_t>(inexact), "run") + (inexact == 1 ? " asks" : " ask"));
  }
  return text;
}

}  // namespace dlsim::sim
