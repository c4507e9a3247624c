// SPDX-License-Identifier: Apache-2.0
// What a profile is exact for, in words and as JSON; and numbers of which it leaves a range.
#pragma once

#include <string>
#include <vector>

#include "dlsim/gradient_source.h"
#include "sim/output/json_value.h"

namespace dlsim {

// Returns scales in short: "2^-24..2^40, 2.02e-14..2e+15 in doublings".
std::string ScalesText(const std::vector<float>& scales);

// Returns lines such as "ladder: fp16, bf16; rne, rtz; subnormals keep; scales 2^0..2^16".
std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes);

// The keys that a profile adds to the object "trace".
void AddProfile(const ProfileFacts& profile, Json& object);

}  // namespace dlsim
