// SPDX-License-Identifier: Apache-2.0
#include "dlsim/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "sim/run_state.h"
#include "sim/step_queue.h"
#include "sim/trace_source.h"

namespace dlsim {
namespace {

// The distinct questions of the runs that go on, and which is whose.
struct Questions {
  std::vector<StepQuestion> distinct;
  std::vector<size_t> of_run;  // index into `distinct`, per run; unused where a run has stopped
};

Questions Gather(const GradientStep& step, std::vector<RunState>& states) {
  const auto needs = [&](auto predicate) {
    return std::any_of(states.begin(), states.end(),
                       [&](const RunState& s) { return !s.stopped() && predicate(s); });
  };
  std::vector<StepTensor> tensors;
  if (needs([](const RunState& s) {
        return s.run().rules.granularity != ScaleGranularity::kModel;
      })) {
    tensors = step.Tensors();
  }
  std::vector<GradientSpread> spreads;
  if (needs([](const RunState& s) { return s.looks_ahead(); })) spreads = step.Spreads();
  Questions questions;
  for (RunState& state : states) {
    questions.of_run.push_back(0);
    if (state.stopped()) continue;
    StepQuestion question = state.Prepare(step.number(), tensors, spreads);
    const auto found = std::find(questions.distinct.begin(), questions.distinct.end(), question);
    questions.of_run.back() = static_cast<size_t>(found - questions.distinct.begin());
    if (found == questions.distinct.end()) questions.distinct.push_back(std::move(question));
  }
  return questions;
}

}  // namespace

std::vector<ReplayResult> Replay(const GradientSource& source, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  std::vector<RunState> states;
  for (ReplayRun& run : runs) states.emplace_back(std::move(run), options);
  StepQueue<std::unique_ptr<GradientStep>> queue(source.step_count(),
                                                 [&](size_t i) { return source.Load(i); });
  StepOptions step_options = options.step;
  std::unique_ptr<GradientStep> finished;  // closed beside the next step: unmapping takes long
  for (size_t i = 0; i < source.step_count(); ++i) {
    std::unique_ptr<GradientStep> step = queue.Take(i);
    step_options.beside = [&] {
      finished = nullptr;
      queue.LoadAhead(i + 1);
    };
    const Questions questions = Gather(*step, states);
    const StepMeasurement measured = step->Measure(questions.distinct, step_options);
    ObservedStep observed = {i, measured, {}};
    for (size_t r = 0; r < states.size(); ++r) {
      if (states[r].stopped()) continue;
      const std::vector<TensorAnswer>& answers = measured.answers[questions.of_run[r]];
      states[r].Advance(measured, answers, step->number());
      observed.runs.push_back({states[r].run(), answers, states[r].result().steps.back(), r});
    }
    if (options.observer) options.observer(observed);
    finished = std::move(step);
  }
  std::vector<ReplayResult> results;
  for (RunState& state : states) results.push_back(state.TakeResult());
  return results;
}

std::vector<ReplayResult> Replay(const TraceReader& trace, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  return Replay(TraceSource(trace, options.accumulate_steps), std::move(runs), options);
}

void SummaryUncertainty::Add(const ReplayStep& step) {
  const StepUncertainty& open = *step.uncertain;
  steps += !open.certain;
  gradients.Merge(open.gradients);
  activations.Merge(open.activations);
  clipped_elements.Add(open.clipped_elements);
  clipped_steps.Add(open.clipped);
  if (!step.skipped)
    worst_step_energy_lost.RaiseTo(
        open.gradients.RangeOf(&TensorStats::energy_lost, step.gradients));
}

ReplaySummary Summarize(const ReplayResult& result) {
  ReplaySummary summary;
  if (result.steps.empty()) return summary;
  summary.steps = result.steps.size();
  summary.final_scale = result.steps.back().next_scale;
  summary.min_scale = summary.max_scale = result.steps.front().scale;
  uint64_t skip_run = 0;
  for (const ReplayStep& step : result.steps) {
    summary.skipped_steps += step.skipped;
    skip_run = step.skipped ? skip_run + 1 : 0;
    summary.longest_skip_run = std::max(summary.longest_skip_run, skip_run);
    summary.nonfinite_steps += !step.finite;
    summary.hopeless_steps += !step.lower_scale_helps;
    summary.clipped_elements += step.clipped_elements.value_or(0);
    summary.clippable_elements += step.clippable_elements;
    summary.clipped_steps += step.clipped;
    if (!step.skipped && !summary.first_applied_step) summary.first_applied_step = step.step;
    summary.min_scale = std::min(summary.min_scale, step.scale);
    summary.max_scale = std::max(summary.max_scale, step.scale);
    if (!step.skipped) {
      summary.worst_step_energy_lost =
          std::max(summary.worst_step_energy_lost, step.gradients.energy_lost());
    }
    summary.gradients.Merge(step.gradients);
    summary.activations.Merge(step.activations);
    if (!step.uncertain) continue;
    if (!summary.uncertain) summary.uncertain.emplace();
    summary.uncertain->Add(step);
  }
  return summary;
}

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

std::optional<int64_t> ExpectedWarmUpSkips(const ReplayRun& run, float absmax) {
  constexpr int64_t kMaxSteps = 10000;
  const CodecSpec spec = MakeCodecSpec(run.conversion);
  LossScaler scaler = run.scaler;
  for (int64_t skips = 0; skips < kMaxSteps; ++skips) {
    const float scaled = absmax * static_cast<float>(scaler.scale());
    const EncodeResult result =
        Encode(spec, run.conversion.rounding, std::bit_cast<uint32_t>(scaled), ~0u);
    const CodeClass output = Classify(spec, result.code);
    const bool overflow = output == CodeClass::kInfinity || output == CodeClass::kNan;
    if (!scaler.Next({.overflow = overflow}).skip) return skips;
  }
  return std::nullopt;
}

}  // namespace dlsim
