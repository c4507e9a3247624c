// SPDX-License-Identifier: Apache-2.0
// What Cerebras' TensorFlow trainer logs of each gradient: sparsity, denormals, norm and a
// histogram of magnitudes. Definitions: Cerebras Model Zoo, modelzoo/common/tf/Trainer.py,
// log_training_summaries; docs/results.md says where dlsim is more exact.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// Writes the document dlsim.summaries/1, with an object for every tensor of every recording.
// Denormal is 0 < magnitude < min_normal. `paths` are those of the trace. Calls on_step with the
// number of steps that were read. Throws Error if reading fails.
void WriteSummaries(const TraceReader& trace, std::span<const std::string> paths, float min_normal,
                    OutputFile& out, const std::function<void(size_t)>& on_step);

void AddSummariesKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
