// SPDX-License-Identifier: Apache-2.0
// What was read, a trace or a profile and what that is exact for, in words and as JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dlsim/ladder.h"
#include "dlsim/sim/gradient_source.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

// The object of lists "formats", "roundings" and "subnormals".
Json LadderNames(const Ladder& ladder);

// Returns the names of the scaled formats that a profile holds.
Json ScaledNames(const ProfileSettings& settings);

enum class ScaleList : uint8_t { kWhole, kEnds };

// Returns such as "fp16, bf16; rne, rtz; subnormals keep; scales 1..2^16 (17)", or with the ends of
// the scales alone where these are no single range.
std::string DescribeLadder(const Ladder& ladder, ScaleList scales);

// Returns the lines of a report, the first with the ladder.
std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes);

// The keys that a profile adds to the object "trace".
void AddProfile(const ProfileFacts& profile, Json& object);

// The object "trace": what was read.
Json JsonTrace(const SourceFacts& facts, std::span<const std::string> paths);

}  // namespace dlsim::sim
