// SPDX-License-Identifier: Apache-2.0
#include "sim/output/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "dlsim/error.h"
#include "sim/output/scale_plot.h"
#include "sim/output/table.h"

namespace dlsim {
namespace {

constexpr size_t kPlotWidth = 72;
constexpr size_t kPlotHeight = 8;

// A share as a percentage that tells "none" from "few".
std::string Percent(double fraction) {
  if (fraction == 0) return "0";
  return fraction >= 0.0001 ? fmt::format("{:.3g} %", 100 * fraction)
                            : fmt::format("{:.1e} %", 100 * fraction);
}

std::string Bytes(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.1f} GiB", value / 0x1p30);
  if (bytes >= uint64_t{1} << 20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return fmt::format("{:.1f} KiB", value / 0x1p10);
}

std::string DescribeTrace(const TraceReader& trace) {
  const auto model = trace.description().find("model");
  std::string line = fmt::format(
      "trace: {}{} steps ({} to {}), {}\n",
      model == trace.description().end() ? "" : Printable(model->second) + ", ", trace.step_count(),
      trace.step_number(0), trace.step_number(trace.step_count() - 1), Bytes(trace.file_bytes()));
  for (const std::string& note : trace.notes()) line += "note: " + note + "\n";
  return line;
}

std::string DescribeParameters(const SimulationRun& run) {
  std::string text;
  for (const NamedValue& parameter : run.parameters) {
    const std::string value = std::visit(
        [](const auto& v) {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
            return fmt::format("{:g}", v);
          } else {
            return fmt::format("{}", v);
          }
        },
        parameter.value);
    text += (text.empty() ? "" : ", ") + parameter.name + " " + value;
  }
  return text;
}

// Each policy once, with its parameters and notes.
std::string DescribePolicies(std::span<const SimulationRun> runs) {
  std::string text;
  std::vector<std::string> seen;
  for (const SimulationRun& run : runs) {
    std::string lines = "policy: " + run.policy + " (" + DescribeParameters(run) + ")\n";
    for (const std::string& note : run.notes) lines += "note: " + note + "\n";
    if (!run.start || std::find(seen.begin(), seen.end(), lines) != seen.end()) continue;
    text += lines;
    seen.push_back(lines);
  }
  return text;
}

TableRow OverviewRow(const SimulationRun& run) {
  const ReplaySummary summary = Summarize(run.result);
  const TensorStats& g = summary.gradients;
  return {run.format + " " + run.policy,
          fmt::format("{}/{}", summary.skipped_steps, summary.steps),
          std::to_string(summary.nonfinite_steps),
          summary.first_applied_step ? std::to_string(*summary.first_applied_step) : "never",
          ScaleText(summary.final_scale),
          ScaleText(summary.min_scale) + ".." + ScaleText(summary.max_scale),
          Percent(g.underflow_fraction()),
          Percent(summary.worst_step_energy_lost),
          std::to_string(g.overflow),
          std::to_string(g.nonfinite())};
}

std::string Overview(std::span<const SimulationRun> runs) {
  std::vector<TableRow> rows = {{"format policy", "skipped", "not finite", "first applied",
                                 "final scale", "scale range", "underflow", "energy lost",
                                 "overflow", "nonfinite in"}};
  std::string refused;
  for (const SimulationRun& run : runs) {
    if (run.start) {
      rows.push_back(OverviewRow(run));
    } else {
      refused += fmt::format("  {} {}: refused its parameters ({}: {})\n", run.format, run.policy,
                             run.result.events.front().type, run.result.events.front().message);
    }
  }
  return "\n" + FormatTable(rows) + refused;
}

// How many steps were not finite, by cause.
std::string CountFailures(const SimulationRun& run) {
  std::map<std::string, size_t> causes;
  size_t failed = 0;
  for (const ReplayStep& step : run.result.steps) {
    if (step.finite) continue;
    ++failed;
    ++causes[CauseName(step.cause)];
  }
  if (failed == 0) return "";
  std::string text;
  for (const auto& [cause, count] : causes) {
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", count, cause);
  }
  return fmt::format("  steps not finite: {} ({})\n", failed, text);
}

// The first step that was not finite, and why.
std::string FirstFailure(const SimulationRun& run) {
  const auto& steps = run.result.steps;
  const auto failed =
      std::find_if(steps.begin(), steps.end(), [](const ReplayStep& s) { return !s.finite; });
  if (failed == steps.end()) return "  first overflow: none\n";
  const std::string tensor = Printable(failed->cause_tensor);
  const std::string at = fmt::format("  first overflow: step {} at scale {}, ", failed->step,
                                     ScaleText(failed->scale));
  switch (failed->cause) {
    case Cause::kInput:
      return at + tensor + " was recorded with infinity or NaN: no scale helps\n";
    case Cause::kNorm:
      return at + "every element is finite but their float32 norm is not; " + tensor +
             " is the largest part\n";
    case Cause::kAccumulation:
      return at + "the float32 sum over micro-steps overflows in " + tensor + "\n";
    default:
      return at + tensor + " is the farthest beyond the format's range\n";
  }
}

// How many skips the initial scale costs, against what the first recorded step makes one expect.
std::string WarmUp(const SimulationRun& run) {
  const ReplayStep& first = run.result.steps.front();
  const float absmax = first.gradients.absmax;
  if (absmax == 0) return "";
  const double limit = OverflowThreshold(run.start->conversion.format) / absmax;
  size_t skipped = 0;
  while (skipped < run.result.steps.size() && run.result.steps[skipped].skipped) ++skipped;
  const std::optional<int64_t> expected = ExpectedWarmUpSkips(*run.start, absmax);
  return fmt::format(
      "  warm-up: the largest gradient of step {} is {:.3g} and fits {} below scale {}; from {} "
      "expect {} skipped steps, replayed {}\n",
      first.step, absmax, run.format, ScaleText(limit), ScaleText(first.scale),
      expected ? std::to_string(*expected) : "endless", skipped);
}

using TensorOrder = bool (*)(const ReplayTensor& a, const ReplayTensor& b);

std::string WorstTensors(const SimulationRun& run, const char* title, TensorOrder worse,
                         size_t top) {
  std::vector<ReplayTensor> tensors;
  for (const ReplayTensor& tensor : run.result.tensors) {
    if (tensor.stats.underflow > 0) tensors.push_back(tensor);
  }
  if (tensors.empty() || top == 0) return "";
  std::stable_sort(tensors.begin(), tensors.end(), worse);
  const size_t shown = std::min(top, tensors.size());
  std::vector<TableRow> rows = {
      {title, "role", "underflow", "of nonzero", "energy lost", "subnormal", "overflow", "absmax"}};
  for (size_t i = 0; i < shown; ++i) {
    const TensorStats& s = tensors[i].stats;
    rows.push_back({Printable(tensors[i].name), RoleName(tensors[i].role),
                    Percent(s.underflow_fraction()), std::to_string(s.nonzero_finite()),
                    Percent(tensors[i].worst_step_energy_lost), std::to_string(s.subnormal),
                    std::to_string(s.overflow), fmt::format("{:.2e}", s.absmax)});
  }
  return FormatTable(rows);
}

std::string Events(const SimulationRun& run) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, run.result.events.size()); ++i) {
    const ScalerEvent& event = run.result.events[i];
    text += fmt::format("  step {}: {}: {}{}\n", event.step, event.type, event.message,
                        event.fatal ? " (fatal)" : "");
  }
  if (run.result.events.size() > kShown) {
    text += fmt::format("  ... and {} more events\n", run.result.events.size() - kShown);
  }
  return text;
}

std::string RunSection(const SimulationRun& run, size_t top) {
  if (!run.start || run.result.steps.empty()) return "";
  return fmt::format("\n{}, {}: loss scale (x = skipped)\n", run.format, run.policy) +
         PlotScale(run.result.steps, kPlotWidth, kPlotHeight) + CountFailures(run) +
         FirstFailure(run) + WarmUp(run) + Events(run) +
         WorstTensors(
             run, "worst by underflow",
             [](const ReplayTensor& a, const ReplayTensor& b) {
               return a.stats.underflow_fraction() > b.stats.underflow_fraction();
             },
             top) +
         WorstTensors(
             run, "worst by energy lost",
             [](const ReplayTensor& a, const ReplayTensor& b) {
               return a.worst_step_energy_lost > b.worst_step_energy_lost;
             },
             top);
}

}  // namespace

std::string FormatReport(const TraceReader& trace, std::span<const SimulationRun> runs,
                         size_t top) {
  std::string report = DescribeTrace(trace) + DescribePolicies(runs) + Overview(runs);
  report +=
      "\n  underflow: share of nonzero finite parameter gradients that become zero; energy lost: "
      "their share\n  of a step's sum of squares, at the worst applied step. Open loop: a skipped "
      "step would "
      "have changed\n  the gradients after it.\n";
  for (const SimulationRun& run : runs) report += RunSection(run, top);
  return report;
}

}  // namespace dlsim
