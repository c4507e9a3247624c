// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/forward_counter.h"

#include <algorithm>

#include "sim/replay/harm.h"

namespace dlsim::sim {

void ForwardCounter::Advance(int64_t step, const StepMeasurement& forward) {
  const std::span<const TensorAnswer> answers = Answers(forward);
  const std::vector<TensorStats> totals = TotalsOf(answers);
  for (size_t t = 0; t < answers.size(); ++t) {
    const StepTensor& header = forward.tensors[t];
    const TensorStats& total = totals[t];
    ForwardSum& sum = header.role == Role::kAct ? pass_.outputs : pass_.values;
    ReplayTensor& tensor = tensors_.Of(header.name, t, header.role);
    sum.stats.Merge(total);
    tensor.stats.Merge(total);
    tensor.worst_step_energy_lost = std::max(tensor.worst_step_energy_lost, total.energy_lost());
    if (total.overflow > 0 && !tensor.first_overflow_step) tensor.first_overflow_step = step;
    if (!answers[t].bounds) continue;
    const CounterBrackets& bounds = answers[t].bounds->counters;
    sum.open.Merge(bounds);
    tensor.AddUncertainty(bounds);
    tensor.uncertain->worst_step_energy_lost.RaiseTo(
        bounds.RangeOf<&TensorStats::energy_lost>(total));
  }
}

}  // namespace dlsim::sim
