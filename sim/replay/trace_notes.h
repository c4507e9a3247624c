// SPDX-License-Identifier: Apache-2.0
// Remarks on a trace that a replay cannot tell from its figures: what it may not be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim::sim {

// Returns the reader's own notes, then one each for steps that were not recorded, for gradients in
// 16 bits, and for what looks like a model's weights or has a name like forward values or weights;
// the last two go by the first step.
std::vector<std::string> NotesOnTrace(const TraceReader& trace);

// Notes the steps that are missing between those that are there, by their numbers, which ascend: a
// scaler counts steps, and may have seen an overflow there.
void NoteGaps(size_t steps, const std::function<int64_t(size_t)>& number,
              std::vector<std::string>& notes);

// Notes parameter gradients whose names are those of forward values or weights.
void NoteNames(std::span<const std::string> gradients, std::vector<std::string>& notes);

}  // namespace dlsim::sim
