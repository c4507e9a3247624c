// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/named_list.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/policies/policy.h"
#include "sim/replay/finite_test.h"
#include "sim/replay/layer_name.h"

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

// Those with the largest of a figure.
template <class Figure>
std::string WorstTensors(std::vector<ReplayTensor> tensors, const char* title, const Figure& figure,
                         size_t top) {
  if (tensors.empty() || top == 0) return "";
  std::ranges::stable_sort(tensors, std::greater(), figure);
  const size_t shown = std::min(top, tensors.size());
  std::vector<TableRow> rows = {
      {title, "role", "underflow", "of nonzero", "energy lost", "subnormal", "overflow", "absmax"}};
  for (const ReplayTensor& tensor : std::span(tensors).first(shown)) {
    const TensorStats& stats = tensor.stats;
    rows.push_back({Printable(tensor.name), std::string(NameOf(tensor.role)),
                    Percent(stats.underflow_fraction()), std::to_string(stats.nonzero_finite()),
                    Percent(tensor.worst_step_energy_lost), std::to_string(stats.subnormal),
                    std::to_string(stats.overflow), fmt::format("{:.2e}", stats.absmax)});
  }
  std::vector<std::string_view> dispensable(rows.front().rbegin(), rows.front().rend() - 2);
  std::erase(dispensable, "underflow");
  return FormatTable(rows, dispensable);
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

// Why steps were not finite, the warm-up, clipping, events and the worst tensors of a run; empty if
// it has no steps.
std::string RunSection(const SimulationRun& run, std::span<const OptimizerGroup> optimizers,
                       size_t top) {
  if (!run.start || run.result.steps.empty()) return "";
  std::vector<ReplayTensor> underflowing = run.result.tensors;
  std::erase_if(underflowing, [](const ReplayTensor& of) { return of.stats.underflow == 0; });
  return "\n" + RunLabel(run) + ":\n" + CountFailures(run) + FirstFailure(run) + Hopeless(run) +
         WarmUp(run) + ClippingLine(run) + Optimizers(run, optimizers) + Events(run) +
         WorstTensors(
             underflowing, "worst by underflow",
             [](const ReplayTensor& of) { return of.stats.underflow_fraction(); }, top) +
         WorstTensors(underflowing, "worst by energy lost", &ReplayTensor::worst_step_energy_lost,
                      top) +
         WorstTensors(
             run.result.forward.tensors, "forward, largest first",
             [](const ReplayTensor& of) { return of.stats.absmax; }, top);
}

std::string Range(const SourceFacts& facts) {
  const std::string first = std::to_string(facts.first_step);
  return facts.steps == 1 ? first : first + " to " + std::to_string(facts.last_step);
}

// Each policy once, with its parameters and notes.
std::string DescribePolicies(std::span<const SimulationRun> runs) {
  std::vector<std::string> seen;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start) continue;
    const std::string owner = run.config.empty() ? "" : run.config + ": ";
    std::string lines =
        "policy: " + owner + run.policy + " (" + ParametersText(run.parameters) + ")\n";
    for (const std::string& note : run.notes) lines += "note: " + note + "\n";
    if (std::ranges::count(seen, lines) == 0) seen.push_back(lines);
  }
  return fmt::format("{}", fmt::join(seen, ""));
}

// Each note of a policy that the original would have ended or that raised something, once, whatever
// formats it runs with; the others are details.
std::string NotesOfPolicies(std::span<const SimulationRun> runs) {
  std::vector<std::string> seen;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start || run.result.events.empty()) continue;
    for (const std::string& note : run.notes) {
      std::string line = "note: " + run.policy + ": " + note + "\n";
      if (std::ranges::count(seen, line) == 0) seen.push_back(std::move(line));
    }
  }
  return fmt::format("{}", fmt::join(seen, ""));
}

// Other measures of what is lost are details.
TableRow OverviewRow(const SimulationRun& run, bool details) {
  const ReplaySummary& summary = run.result.summary;
  const TensorStats& g = summary.gradients;
  const bool applied = summary.steps > summary.skipped_steps;
  TableRow row = {
      RunLabel(run),
      fmt::format("{}/{}", summary.skipped_steps, summary.steps),
      std::to_string(summary.nonfinite_steps),
      summary.first_applied_step ? std::to_string(*summary.first_applied_step) : "never",
      ScaleText(summary.final_scale),
      ScaleText(summary.min_scale) + ".." + ScaleText(summary.max_scale),
      applied ? Percent(summary.tensor_harm.mean()) : "-",
      applied ? Percent(summary.tensor_harm.worst) : "-",
      std::to_string(g.overflow),
      std::to_string(g.nonfinite())};
  if (!details) return row;
  row.push_back(Percent(g.underflow_fraction()));
  row.push_back(Percent(summary.worst_step_energy_lost));
  return row;
}

std::string Overview(std::span<const SimulationRun> runs, bool details) {
  const bool compared = !runs.empty() && !runs.front().config.empty();
  std::vector<TableRow> rows = {{compared ? "config format policy" : "format policy", "skipped",
                                 "not finite", "first applied", "final scale", "scale range",
                                 "mean harm", "worst harm", "overflow", "Inf/NaN recorded"}};
  if (details) rows.front().insert(rows.front().end(), {"underflow", "energy lost"});
  std::string refused, stopped;  // by the original software
  for (const SimulationRun& run : runs) {
    if (run.resume) continue;
    if (run.result.stopped_at) {
      stopped += fmt::format("  {}: stopped at step {} by {}\n", RunLabel(run),
                             *run.result.stopped_at, run.result.events.back().type);
    }
    if (run.start) {
      rows.push_back(OverviewRow(run, details));
    } else {
      refused += fmt::format("  {}: refused its parameters ({}: {})\n", RunLabel(run),
                             run.result.events.front().type, run.result.events.front().message);
    }
  }
  constexpr std::string_view kDispensable[] = {"Inf/NaN recorded", "not finite",  "first applied",
                                               "overflow",         "final scale", "energy lost",
                                               "underflow",        "worst harm"};
  return "\n" + FormatTable(rows, kDispensable) + refused + stopped;
}

// How the interrupted twins differ from the whole runs before them.
std::string Interrupted(std::span<const SimulationRun> runs) {
  std::vector<TableRow> rows = {
      {"interrupted", "checkpoint keeps", "differs from step", "skipped", "final scale"}};
  const SimulationRun* whole = nullptr;
  int64_t step = 0;
  const auto add = [&](const SimulationRun& run, Kept kept, const std::string& differs) {
    const ReplaySummary& summary = run.result.summary;
    const bool own = FindPolicy(run.policy).checkpoint == kept;
    rows.push_back({RunLabel(run), std::string(NameOf(kept)) + (own ? " *" : "  "), differs,
                    fmt::format("{}/{}", summary.skipped_steps, summary.steps),
                    ScaleText(summary.final_scale)});
  };
  for (const SimulationRun& run : runs) {
    if (!run.resume) {
      whole = &run;
      continue;
    }
    step = run.resume->at_step;
    if (run.resume->kept == Kept::kScale) add(*whole, Kept::kAll, "never");
    add(run, run.resume->kept,
        run.first_difference ? std::to_string(*run.first_difference) : "never");
  }
  if (rows.size() == 1) return "";
  constexpr std::string_view kDispensable[] = {"final scale", "differs from step"};
  return fmt::format("\n  if interrupted before step {} and resumed:\n", step) +
         FormatTable(rows, kDispensable) +
         "  * what the original software saves in its checkpoint\n";
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

std::vector<LayerLoss> LayerLosses(std::span<const ReplayTensor> tensors) {
  NamedList<LayerLoss> layers;
  for (const ReplayTensor& tensor : tensors) {
    if (tensor.noise()) continue;
    LayerLoss& layer =
        layers.Of(std::string(WithoutCall(LayerOf(tensor.name))), layers.items().size() - 1);
    ++layer.tensors;
    layer.overflow += tensor.stats.overflow;
    if (tensor.first_overflow_step) {
      layer.first_overflow_step =
          std::min(layer.first_overflow_step.value_or(*tensor.first_overflow_step),
                   *tensor.first_overflow_step);
    }
    if (tensor.harm.steps == 0) continue;
    layer.harm.Add(tensor.harm.mean());
    layer.harm.worst = std::max(layer.harm.worst, tensor.harm.worst);
  }
  std::vector<LayerLoss> sorted = layers.Take();
  std::ranges::stable_sort(sorted, std::greater(), [](const LayerLoss& layer) {
    return std::tuple(layer.overflow, layer.harm.worst);
  });
  return sorted;
}

std::string FormatLayerLosses(std::span<const SimulationRun> runs, size_t top) {
  std::string text;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start || top == 0) continue;
    const std::vector<LayerLoss> layers = LayerLosses(run.result.tensors);
    std::vector<TableRow> rows = {
        {RunLabel(run) + ", layer", "mean harm", "worst harm", "overflows", "first at step"}};
    const size_t shown = std::min(top, layers.size());
    for (const LayerLoss& layer : std::span(layers).first(shown)) {
      rows.push_back(
          {Printable(layer.name), Percent(layer.harm.mean()), Percent(layer.harm.worst),
           std::to_string(layer.overflow),
           layer.first_overflow_step ? std::to_string(*layer.first_overflow_step) : "-"});
    }
    constexpr std::string_view kDispensable[] = {"first at step", "mean harm"};
    text += "\n" + FormatTable(rows, kDispensable) + MoreRows(shown, layers.size());
  }
  return text;
}

std::string DescribeTrace(const SourceFacts& facts) {
  const auto model = facts.description.find("model");
  std::string line =
      fmt::format("trace: {}{} ({}), {}\n",
                  model == facts.description.end() ? "" : Printable(model->second) + ", ",
                  Counted(facts.steps, "step"), Range(facts), Bytes(facts.file_bytes));
  if (facts.profile) {
    line += fmt::format("note: read from a profile ({} of {})\n", Bytes(facts.file_bytes),
                        Bytes(facts.profile->trace_bytes));
  }
  return line + NotesText(facts);
}

std::string NotesText(const SourceFacts& facts) {
  std::string text;
  for (const std::string& note : facts.notes) text += Wrap("note: " + note);
  return text;
}

std::string FormatReport(const SourceFacts& facts, std::span<const SimulationRun> runs,
                         const ReportOptions& options) {
  const bool sections = options.details;
  std::string report = DescribeTrace(facts);
  const bool compared = !runs.empty() && !runs.front().config.empty();
  if (sections || compared) report += DescribePolicies(runs);
  report += Overview(runs, sections);
  report +=
      "\n" +
      Wrap(std::string("  harm: relative squared error of a tensor at an applied step: "
                       "mean over the tensors, and worst. ") +
           (sections ? "underflow: share of nonzero finite parameter gradients that become "
                       "zero; energy lost: their share of a step's sum of squares, at the "
                       "worst applied step. "
                     : "") +
           "The replay does not train: in training, a skipped step would change later gradients.");
  report += Interrupted(runs);
  if (!sections) {
    report += "\n  --details adds a section for each run\n\n";
    if (!compared) report += NotesOfPolicies(runs);
  }
  for (const SimulationRun& run : runs) {
    if (sections && !run.resume) report += RunSection(run, options.optimizers, options.top);
  }
  return report;
}

}  // namespace dlsim::sim
