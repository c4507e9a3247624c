// SPDX-License-Identifier: Apache-2.0
// What supports a recommendation: limits over time, the window of good scales, and what the stacks'
// own defaults come to.
#pragma once

#include "dlsim/sim/tune.h"
#include "sim/tune/scale_table.h"

namespace dlsim::sim {

// The window of scales of all steps that some scale makes finite.
ScaleWindow WindowOf(const ScaleTable& table);

// How far up these steps let the scale go; all 0 without any.
Headroom HeadroomOf(const std::vector<StepFacts>& facts);

// Says what is to be done, from the numbers that are already there.
void Judge(FormatTuning& tuning, const ScaleTable& table);

// Adds what makes the recommendation less sure.
void NoteDoubts(FormatTuning& tuning, const TuneResult& result);

// Replays recommendation, comparisons and what is to blame in one pass, for all formats.
void ReplayEvidence(const TuneSource& source, std::vector<FormatTuning>& tunings,
                    const std::vector<ReplayRun>& prototypes);

}  // namespace dlsim::sim
