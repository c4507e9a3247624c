// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/sweep.h"

#include <utility>

#include "sim/step_source.h"
#include "sim/sweep/sweep_runs.h"

namespace dlsim {
namespace {

// Answers anew, by its elements, what a step's totals do not tell.
void MeasureUnclear(const TraceStep& step, const StepOptions& step_options, Checked checked,
                    QuestionTable& table) {
  std::vector<uint32_t> unclear;
  std::vector<StepQuestion> questions;
  for (const uint32_t index : table.asked()) {
    if (table.At(index).verdict.certain) continue;
    unclear.push_back(index);
    questions.push_back(table.question(index).ToMeasure());
  }
  if (unclear.empty()) return;
  const StepMeasurement measured = MeasureStep(step, questions, step_options);
  for (size_t q = 0; q < unclear.size(); ++q) {
    table.At(unclear[q]) =
        AnswerOf(table.question(unclear[q]).kind(), measured, measured.answers[q], checked);
  }
}

void AdvanceTotals(const TraceStep& step, const StepOptions& step_options, Checked checked,
                   TotalsRuns& runs) {
  runs.Ask();
  const HistogramEdges* const edges = &runs.table().Edges();
  runs.totals().SetEdges(*edges);
  runs.totals().Set(TotalsOf(ProfileOf(step, *edges, step_options)));
  runs.Answer();
  MeasureUnclear(step, step_options, checked, runs.table());
  runs.Advance(step.step);
}

}  // namespace

std::vector<SweepOutcome> Sweep(const TraceReader& trace, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  SweepRuns sweep(std::move(runs), options.replay);
  StepSource source(trace, options.replay.accumulate_steps);
  TraceStep finished;  // closed beside the next step: unmapping a file takes long
  for (size_t i = 0; i < source.count(); ++i) {
    if (sweep.totals.going() == 0 && sweep.general.AllStopped()) break;
    TraceStep step = source.Take(i);
    StepOptions step_options = options.replay.step;
    bool opened = false;
    step_options.beside = [&] {
      if (std::exchange(opened, true)) return;
      finished = {};
      source.LoadAhead(i + 1);
    };
    if (sweep.totals.going() > 0) {
      AdvanceTotals(step, step_options, options.replay.checked, sweep.totals);
    }
    if (!sweep.general.AllStopped()) sweep.general.Advance(step, step_options);
    finished = std::move(step);
    if (options.progress) options.progress(i + 1);
  }
  return sweep.Outcomes();
}

}  // namespace dlsim
