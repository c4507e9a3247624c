// SPDX-License-Identifier: Apache-2.0
// The options that describe the training around a loss-scaling policy: clipping, accumulation,
// optimizers, and interruption.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dlsim/sim/forward.h"
#include "dlsim/sim/replay.h"
#include "sim/app/option_rows.h"
#include "sim/base/rows.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// --max-gradient-norm, --max-gradient-value, --clip-rule, --clip-at, --grad-accum-steps,
// --optimizer,
// --state and --resume-at.
void VisitTraining(OptionRows& option, SimulationRequest& request, ReplayOptions& replay,
                   std::optional<int64_t>& accumulate_steps);

// What makes a step skip or end, of the commands that run policies: --finite-test, --check,
// --accumulate and --on-fatal; and those alone that other commands have.
struct RuleOptions {
  std::optional<FiniteTest> finite_test;
  Checked checked = Checked::kParameterGradients;
  std::optional<Accumulation> accumulation;
  OnFatal on_fatal = OnFatal::kStop;

  void Visit(OptionRows& option);
};
// --recipe: nothing if it is not given.
void VisitRecipe(OptionRows& option, std::optional<Recipe>& recipe);
void VisitCheck(OptionRows& option, Checked& checked);
void VisitOnFatal(OptionRows& option, OnFatal& on_fatal);
inline constexpr const char* kAccumulateHelp =
    "With micro-steps: quantize each and then sum (quantize-first, default), or sum first and "
    "quantize once (sum-first)";

// Refuses what does not fit the trace: an interruption after its last step. Throws Error (2).
void CheckAgainst(const SourceFacts& facts, const SimulationRequest& request);

// Fits runs to a profile, which has no values to look at: leaves out their clipping, and the runs
// that its tables do not answer, with a note. Throws UsageError for such a run if the user named
// its policy.
void FitToProfile(const ProfileFacts& profile, bool named, bool quiet,
                  std::vector<SimulationRun>& runs);

// Refuses an optimizer that took no gradient in the whole replay. Throws Error (exit code 2).
void CheckOptimizers(const std::vector<OptimizerGroup>& optimizers,
                     const std::vector<SimulationRun>& runs);

// The options for the record; rows are left out where the option has its default.
void TrainingRows(const SimulationRequest& request, const ReplayOptions& replay, RowSink& row);

}  // namespace dlsim::sim
