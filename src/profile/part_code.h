// SPDX-License-Identifier: Apache-2.0
// The part of a trace that a profile is of, as bytes, and parts put together.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/profile.h"

namespace dlsim {

std::string EncodePart(const ProfilePart& part);

// Throws InputError for bytes that no part has; the whole is none.
ProfilePart DecodePart(const std::string& place, std::string_view payload);

// Returns what the parts are together; nothing if that is the whole, or if it is not known of one.
// A trace that has grown meanwhile has the larger number of steps.
std::optional<ProfilePart> JoinParts(std::span<const std::optional<ProfilePart>> parts);

// Returns what is not there first: "steps 21 to 40 of 60 (counted from 1)".
std::string MissingSteps(const ProfilePart& part);

}  // namespace dlsim
