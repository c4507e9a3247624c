// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/step_loop.h"

#include <memory>
#include <utility>

#include "sim/replay/step_queue.h"

namespace dlsim::sim {

void ForEachStep(const GradientSource& source, const StepOptions& options, StepConsumer& consumer) {
  StepQueue<std::unique_ptr<GradientStep>> queue(
      source.step_count(), [&](size_t i) { return source.Load(i, consumer.needs()); });
  for (size_t i = 0; i < source.step_count() && consumer.going(); ++i) {
    std::unique_ptr<GradientStep> step = queue.Take(i);
    StepMeasurement measured;
    queue.LoadBeside(i + 1, [&] {
      if (const HistogramEdges* const edges = consumer.Edges()) {
        consumer.TakeTotals(step->Totals(*edges, options));
      }
      const std::optional<StepQuestions> questions = consumer.Ask(*step);
      if (questions) measured = step->Measure(*questions, options);
    });
    consumer.Advance(i, *step, measured);
    queue.GiveBack(std::move(step));
  }
}

}  // namespace dlsim::sim
