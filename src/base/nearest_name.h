// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name nearest to what somebody wrote.
#pragma once

#include <span>
#include <string_view>

namespace dlsim {

// True if the texts are equal but for the case of their letters.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

// Returns the candidate with the smallest edit distance to `name`, in which case does not count,
// the first of equals; empty if none is near.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace dlsim
