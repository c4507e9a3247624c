// SPDX-License-Identifier: Apache-2.0
// The readable report of a sweep.
#include <fmt/format.h>

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/sweep/sweep_output.h"

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

TableRow RowOf(const SweepResult& result, size_t run, std::string last) {
  const SweepOutcome& o = result.outcomes[run];
  const GridPoint& point = result.plan.points[run];
  const SweepGrid& grid = result.setup.grid;
  TableRow row = {result.plan.formats[point.format].name + " " + std::string(point.policy->name)};
  if (result.setup.roundings.size() > 1) row.push_back(grid.roundings[point.rounding]);
  const std::vector<std::string> keys = AxisKeys(grid), values = ValuesAt(grid, point);
  for (size_t i = 0; i < values.size(); ++i) {
    row.push_back(Printable(ParameterText(keys[i], values[i])));
  }
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

// The best runs; those that went the same way share a line.
std::string TopTable(const SweepResult& result, uint64_t top) {
  std::vector<TableRow> rows = {HeaderOf(result, "runs")};
  for (size_t i = 0; i < result.order.size() && rows.size() <= top;) {
    const size_t run = result.order[i];
    size_t count = 0;
    const auto same = [&](size_t other) {
      return SameOutcome(result.outcomes[run], result.outcomes[other]) &&
             result.plan.points[run].format == result.plan.points[other].format;
    };
    // A scale that is not a number differs from itself.
    do ++i, ++count;
    while (i < result.order.size() && same(result.order[i]));
    rows.push_back(RowOf(result, run, std::to_string(count)));
  }
  return FormatTable(rows, kDispensable);
}

std::string FrontTable(const SweepResult& result) {
  std::vector<TableRow> rows = {HeaderOf(result, "run")};
  for (size_t i = 0; i < std::min(kMaxFront, result.pareto.size()); ++i) {
    rows.push_back(RowOf(result, result.pareto[i], "#" + std::to_string(result.pareto[i])));
  }
  std::string text = FormatTable(rows, kDispensable);
  if (result.pareto.size() > kMaxFront) {
    text += fmt::format("  and {} more: --json\n", result.pareto.size() - kMaxFront);
  }
  return text;
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

std::string FormatSweep(const SweepResult& result, uint64_t top) {
  const auto inexact = std::ranges::count_if(
      result.outcomes, [](const SweepOutcome& outcome) { return !outcome.exact; });
  std::string text = Counted(result.outcomes.size(), "run") + "\n" + RefusedLines(result.plan);
  text += "\nbest:\n" + TopTable(result, top);
  const bool windows = SearchedWindows(result);
  text += fmt::format("\nPareto front of skipped steps against {}:\n",
                      windows ? "gradient lost" : "energy lost");
  text += FrontTable(result);
  text += "\n" +
          Wrap(windows ? "  gradient lost: mean over the steps of what each loses: all if it is "
                         "skipped, the harm that is expected if the scale is below the step's "
                         "window; below: applied steps of that kind."
                       : "  energy lost: share of a step's sum of squares that becomes zero, mean "
                         "over applied steps; worst step: the largest of these.");
  text += "  runs: so many went the same way.\n";
  if (inexact > 0) {
    text += fmt::format(
        "  ~: {} what the profile's ladder leaves open; --json has the bounds.\n",
        Counted(static_cast<uint64_t>(inexact), "run") + (inexact == 1 ? " asks" : " ask"));
  }
  return text;
}

}  // namespace dlsim::sim
