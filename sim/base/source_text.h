// SPDX-License-Identifier: Apache-2.0
// What was read, a trace or a profile and what that answers, in words and as JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dlsim/sim/step.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

// Returns what a profile holds next to the tables of gradients and forward tensors: "mantissas" of
// loss scales that are no powers of two, and "scaled_formats".
Json ProfileNames(const ProfileSettings& settings);

// Returns the lines of a report.
std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes);

// The object "trace": what was read.
Json JsonTrace(const SourceFacts& facts, std::span<const std::string> paths);

}  // namespace dlsim::sim
