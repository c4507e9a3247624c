// SPDX-License-Identifier: Apache-2.0
// The steps of a trace, of a profile, and in memory; several recorded steps may make one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// Files as they are on disk at one time.
struct FileState {
  std::vector<RecordedFile> files;
  std::vector<int64_t> changed_at;  // of each, in nanoseconds since 1970

  friend bool operator==(const FileState&, const FileState&) = default;
};

// Returns it before files are opened: one that is gone is reported where it is opened.
FileState StateIfThere(std::span<const std::string> paths);

// Throws InputError naming a file of which size or time is not as before.
void RequireUnchanged(std::span<const std::string> paths, const FileState& before);

SourceFacts FactsOf(const TraceReader& trace);

// Throws InputError if there is no step.
SourceFacts FactsOf(const ProfileReader& profile);

// The effective steps of a trace: several recorded ones make one with `accumulate_steps`, as in
// ReplayOptions. `trace` must live as long. Throws UsageError if that does not fit the trace.
StepSource TraceSteps(const TraceReader& trace, int64_t accumulate_steps);

// The paths of the files of an effective step, in the order of its recordings.
std::vector<std::string> FilesOf(const TraceReader& trace, int64_t accumulate_steps, size_t i);

// The steps of a profile, with the tensors whose name matches the pattern (fnmatch). `profile` must
// live as long.
StepSource ProfileSteps(const ProfileReader& profile, const std::string& tensors);

// Throws UsageError if the gradients of data-parallel ranks became one in another way than asked.
void RequireSameRanks(const ProfileReader& profile, const std::optional<RankReduction>& asked);

// Steps in memory.
StepSource HeldSteps(std::vector<StepTables> steps);

// Returns the steps without gradients of the loss itself, which training keeps in float32, so that
// they bound no loss scale; a note says so. They are activation gradients of an output without
// dimensions, or of shape (1,) of the model itself, whose unscaled value is 1, or 1/n of n
// micro-steps, alike at all steps that are looked at: up to 64, all over the run. Not of steps that
// have nothing else.
StepSource WithoutLosses(StepSource source);

}  // namespace dlsim::sim
