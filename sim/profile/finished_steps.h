// SPDX-License-Identifier: Apache-2.0
// Which steps of an unfinished or older profile need not be read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "sim/replay/file_state.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {

// The effective steps from `begin` to `end` without it, by index.
struct StepRange {
  size_t begin = 0, end = 0;

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// Part `index` (from 0) of `parts` nearly equal parts of the steps.
StepRange ShardOf(size_t steps, uint64_t index, uint64_t parts);

// What becomes of finished steps of which the trace no longer has the files.
enum class Gone : uint8_t {
  kForget,  // they are no part of the profile
  kKeep,    // the profile keeps them
};

struct Resumption {
  size_t kept = 0;      // this many finished steps stay
  StepRange remaining;  // steps to read
};

// Keeps the finished steps that are those of `range`, in order, as far as their files have the
// sizes that they had and did not change after `done_at`. Throws InputError if such files hold
// something else than was profiled, and if the rest cannot be read again.
Resumption FindResumption(std::span<const ProfileWriter::Done> done, int64_t done_at,
                          const TraceSource& steps, StepRange range, Gone gone);

}  // namespace dlsim::sim
