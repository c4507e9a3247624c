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

// The paths of the files of an effective step, in the order of its recordings.
std::vector<std::string> FilesOf(const TraceReader& trace, int64_t accumulate_steps, size_t i);

// Throws UsageError if the gradients of data-parallel ranks became one in another way than asked.
void RequireSameRanks(const ProfileReader& profile, const std::optional<RankReduction>& asked);

// Steps in memory.
StepSource HeldSteps(std::vector<StepTables> steps);

}  // namespace dlsim::sim
