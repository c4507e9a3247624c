// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/report_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/largest_scale.h"

namespace dlsim::sim {
namespace {

// How many steps were not finite, by cause.
std::string CountFailures(const SimulationRun& run) {
  std::map<std::string, size_t> causes;
  size_t failed = 0;
  for (const ReplayStep& step : run.result.steps) {
    if (step.finite) continue;
    ++failed;
    ++causes[std::string(NameOf(step.cause))];
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
      return at + tensor + " was recorded with Inf or NaN: no loss scale helps\n";
    case Cause::kNorm:
      return at + "every element is finite but their float32 norm is not; " + tensor +
             " contributes most\n";
    case Cause::kAccumulation:
      return at + "the float32 sum over micro-steps overflows in " + tensor + "\n";
    case Cause::kSum:
      return at + "every element is finite but the float32 sum of " + tensor + " is not\n";
    case Cause::kUnscaling:
      return at + "the scaled gradients are finite, unscaling overflows in " + tensor + "\n";
    default:
      return at + tensor + " is the farthest beyond the format's range\n";
  }
}

// Returns how many steps a policy would skip before its first applied step if every step were like
// this one; nothing if it would not end within 10,000 steps. `absmax` is the step's largest finite
// magnitude.
std::optional<int64_t> ExpectedWarmUpSkips(const ReplayRun& run, float absmax) {
  constexpr int64_t kMaxSteps = 10000;
  LossScaler scaler = run.scaler;
  for (int64_t skips = 0; skips < kMaxSteps; ++skips) {
    const ScaledMagnitude scaled =
        ScaleMagnitude(run.conversion, absmax, static_cast<float>(scaler.scale()));
    if (!scaler.Next({.overflow = scaled.nonfinite}).skip) return skips;
  }
  return std::nullopt;
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
      "  warm-up: the largest gradient of step {} is {:.3g}, which fits {} below scale {}: "
      "starting at {}, {} skipped steps expected, {} found\n",
      first.step, absmax, run.format, ScaleText(limit), ScaleText(first.scale),
      expected ? std::to_string(*expected) : "endless", skipped);
}

TableRow TensorHeader(const char* title) {
  return {title,         "role",      "underflow", "of nonzero",
          "energy lost", "subnormal", "overflow",  "absmax"};
}

TableRow TensorRow(const ReplayTensor& tensor) {
  const TensorStats& stats = tensor.stats;
  return {Printable(tensor.name),
          std::string(NameOf(tensor.role)),
          Percent(stats.underflow_fraction()),
          std::to_string(stats.nonzero_finite()),
          Percent(tensor.worst_step_energy_lost),
          std::to_string(stats.subnormal),
          std::to_string(stats.overflow),
          fmt::format("{:.2e}", stats.absmax)};
}

using TensorOrder = bool (*)(const ReplayTensor& a, const ReplayTensor& b);

std::string WorstTensors(std::vector<ReplayTensor> tensors, const char* title, TensorOrder worse,
                         size_t top) {
  if (tensors.empty() || top == 0) return "";
  std::stable_sort(tensors.begin(), tensors.end(), worse);
  const size_t shown = std::min(top, tensors.size());
  std::vector<TableRow> rows = {TensorHeader(title)};
  for (size_t i = 0; i < shown; ++i) rows.push_back(TensorRow(tensors[i]));
  std::vector<std::string_view> dispensable(rows.front().rbegin(), rows.front().rend() - 2);
  std::erase(dispensable, "underflow");
  return FormatTable(rows, dispensable);
}

std::vector<ReplayTensor> UnderflowingGradients(const SimulationRun& run) {
  std::vector<ReplayTensor> tensors;
  std::ranges::copy_if(run.result.tensors, std::back_inserter(tensors),
                       [](const ReplayTensor& tensor) { return tensor.stats.underflow > 0; });
  return tensors;
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
    text += fmt::format("  ... and {}\n", Counted(run.result.events.size() - kShown, "more event"));
  }
  return text;
}

// Steps that no lower scale would have saved.
std::string Hopeless(const SimulationRun& run) {
  const std::optional<HopelessRow> row = LongestHopelessRow(run.result);
  if (!row) return "";
  const std::string range = row->steps == 1
                                ? fmt::format("step {}", row->first_step)
                                : fmt::format("steps {} to {}", row->first_step, row->last_step);
  return fmt::format(
      "  lowering the scale does not help at {} of the steps that are not finite: {} skipped "
      "({}), which lowered the scale from {} to {} for nothing\n",
      run.result.summary.hopeless_steps, range, Printable(row->tensor), ScaleText(row->first_scale),
      ScaleText(row->last_scale));
}

std::string ClippingLine(const SimulationRun& run) {
  if (!run.start->clipping.enabled()) return "";
  const ReplaySummary& summary = run.result.summary;
  const uint64_t applied = summary.steps - summary.skipped_steps;
  std::string line =
      fmt::format("  clipping: {} of {}", summary.clipped_steps, Counted(applied, "applied step"));
  if (run.start->clipping.max_value) {
    line += fmt::format(
        ", {} ({})", Counted(summary.clipped_elements, "element"),
        Percent(static_cast<double>(summary.clipped_elements) /
                static_cast<double>(std::max<uint64_t>(1, summary.clippable_elements))));
  } else {
    float smallest = 1;
    for (const ReplayStep& step : run.result.steps) {
      smallest = std::fmin(smallest, step.clip_coefficient.value_or(1));
    }
    line += fmt::format(", smallest coefficient {:.3g}", smallest);
  }
  return line + "\n";
}

// How often each of several optimizers skipped.
std::string Optimizers(const SimulationRun& run, std::span<const OptimizerGroup> groups) {
  std::string line;
  for (size_t g = 0; g < groups.size(); ++g) {
    uint64_t skipped = 0;
    for (const ReplayStep& step : run.result.steps) skipped += step.optimizers[g].skipped;
    line += fmt::format("{}{} {}", g == 0 ? "" : ", ", Printable(groups[g].name), skipped);
  }
  return line.empty() ? "" : "  steps skipped by optimizer: " + line + "\n";
}

}  // namespace

std::optional<HopelessRow> LongestHopelessRow(const ReplayResult& result) {
  std::optional<HopelessRow> longest;
  HopelessRow row;
  for (const ReplayStep& step : result.steps) {
    if (!step.skipped || step.lower_scale_helps) {
      row = {};
      continue;
    }
    if (row.steps == 0) row = {step.step, 0, 0, step.scale, 0, step.cause_tensor};
    ++row.steps;
    row.last_step = step.step;
    row.last_scale = step.next_scale;
    if (!longest || row.steps > longest->steps) longest = row;
  }
  return longest;
}

std::string RunSection(const SimulationRun& run, std::span<const OptimizerGroup> optimizers,
                       size_t top) {
  if (!run.start || run.result.steps.empty()) return "";
  return "\n" + RunLabel(run) + ":\n" + CountFailures(run) + FirstFailure(run) + Hopeless(run) +
         WarmUp(run) + ClippingLine(run) + Optimizers(run, optimizers) + Events(run) +
         WorstTensors(
             UnderflowingGradients(run), "worst by underflow",
             [](const ReplayTensor& a, const ReplayTensor& b) {
               return a.stats.underflow_fraction() > b.stats.underflow_fraction();
             },
             top) +
         WorstTensors(
             UnderflowingGradients(run), "worst by energy lost",
             [](const ReplayTensor& a, const ReplayTensor& b) {
               return a.worst_step_energy_lost > b.worst_step_energy_lost;
             },
             top) +
         WorstTensors(
             run.result.forward.tensors, "forward, largest first",
             [](const ReplayTensor& a, const ReplayTensor& b) {
               return a.stats.absmax > b.stats.absmax;
             },
             top);
}

}  // namespace dlsim::sim
