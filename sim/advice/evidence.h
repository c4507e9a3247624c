// SPDX-License-Identifier: Apache-2.0
// What supports a recommendation: limits over time, the window of good scales, and what the stacks'
// own defaults come to.
#pragma once

#include <optional>
#include <vector>

#include "dlsim/sim/tune.h"
#include "sim/advice/advice.h"
#include "sim/advice/tuning.h"

namespace dlsim::sim {

// The window of scales of all steps that some scale makes finite.
ScaleWindow WindowOf(const std::vector<StepFacts>& facts);

// How far up these steps let the scale go; all 0 without any.
Headroom HeadroomOf(const std::vector<StepFacts>& facts);

// Says what is to be done, in the words of tune: the verdict on the format is the advice.
void Judge(const FormatAdvice& advice, FormatTuning& tuning);

// Adds what makes the recommendation less sure.
void NoteDoubts(FormatTuning& tuning, const TuneResult& result);

// Replays recommendations, comparisons and what is to blame for all formats, and fills in what they
// come to. `tensors`: how many a step has.
void ReplayEvidence(const TuneSource& source, size_t tensors, std::vector<FormatTuning>& tunings,
                    const std::vector<ReplayRun>& prototypes,
                    const std::optional<CurrentPolicy>& current);

}  // namespace dlsim::sim
