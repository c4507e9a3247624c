// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/sweep.h"

#include <utility>

#include "sim/step_queue.h"
#include "sim/sweep/sweep_runs.h"
#include "sim/trace_source.h"

namespace dlsim {
namespace {

// A recorded step that can also be counted.
struct RecordedStep final : GradientStep {
  explicit RecordedStep(TraceStep opened) : trace_step(std::move(opened)) {}
  int64_t number() const override { return trace_step.step; }
  std::vector<StepTensor> Tensors() const override { return TensorsOf(trace_step); }
  std::vector<GradientSpread> Spreads() const override { return MeasureSpreads(trace_step); }
  StepMeasurement Measure(std::span<const StepQuestion> questions,
                          const StepOptions& options) const override {
    return MeasureStep(trace_step, questions, options);
  }
  TraceStep trace_step;
};

class RecordedSource final : public GradientSource {
 public:
  RecordedSource(const TraceReader& trace, int64_t accumulate_steps)
      : source_(trace, accumulate_steps) {}
  const SourceFacts& facts() const override { return source_.facts(); }
  size_t step_count() const override { return source_.step_count(); }
  std::unique_ptr<GradientStep> Load(size_t i) const override {
    return std::make_unique<RecordedStep>(source_.LoadStep(i));
  }

 private:
  TraceSource source_;
};

// Answers anew, by its elements, what a step's totals do not tell.
void MeasureUnclear(const GradientStep& step, const StepOptions& step_options, Checked checked,
                    QuestionTable& table) {
  std::vector<uint32_t> unclear;
  std::vector<StepQuestion> questions;
  for (const uint32_t index : table.asked()) {
    if (table.At(index).verdict.certain) continue;
    unclear.push_back(index);
    questions.push_back(table.question(index).ToMeasure());
  }
  if (unclear.empty()) return;
  const StepMeasurement measured = step.Measure(questions, step_options);
  for (size_t q = 0; q < unclear.size(); ++q) {
    table.At(unclear[q]) =
        AnswerOf(table.question(unclear[q]).kind(), measured, measured.answers[q], checked);
  }
}

void AdvanceTotals(const RecordedStep& step, const StepOptions& step_options, Checked checked,
                   TotalsRuns& runs) {
  runs.Ask();
  const HistogramEdges* const edges = &runs.table().Edges();
  runs.totals().SetEdges(*edges);
  runs.totals().Set(TotalsOf(ProfileOf(step.trace_step, *edges, step_options)));
  runs.Answer();
  MeasureUnclear(step, step_options, checked, runs.table());
  runs.Advance(step.number());
}

}  // namespace

std::vector<SweepOutcome> Sweep(const TraceReader& trace, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  // What the totals leave open is measured by the elements.
  SweepRuns sweep(std::move(runs), options.replay, TotalsSuffice::kForAbsmax);
  const RecordedSource source(trace, options.replay.accumulate_steps);
  StepQueue<std::unique_ptr<GradientStep>> queue(source.step_count(),
                                                 [&](size_t i) { return source.Load(i); });
  std::unique_ptr<GradientStep> finished;  // closed beside the next step: unmapping takes long
  for (size_t i = 0; i < source.step_count(); ++i) {
    if (sweep.totals.going() == 0 && sweep.general.AllStopped()) break;
    std::unique_ptr<GradientStep> step = queue.Take(i);
    StepOptions step_options = options.replay.step;
    bool opened = false;
    step_options.beside = [&] {
      if (std::exchange(opened, true)) return;
      finished = nullptr;
      queue.LoadAhead(i + 1);
    };
    if (sweep.totals.going() > 0) {
      AdvanceTotals(static_cast<const RecordedStep&>(*step), step_options, options.replay.checked,
                    sweep.totals);
    }
    if (!sweep.general.AllStopped()) sweep.general.Advance(*step, step_options);
    finished = std::move(step);
    if (options.progress) options.progress(i + 1);
  }
  return sweep.Outcomes();
}

}  // namespace dlsim
