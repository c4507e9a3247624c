// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name nearest to what the user wrote.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dlsim {

// Returns the candidate with the smallest edit distance to `name`, the first of equals; empty if
// none is near.
std::string Suggest(std::string_view name, std::span<const std::string_view> candidates);

// Returns the `expected` part of an error: "one of a, b, c", with "(did you mean 'b'?)" where
// Suggest finds a name among `known` and `aliases`.
std::string ExpectedName(std::string_view name, std::span<const std::string_view> known,
                         std::span<const std::string_view> aliases);

}  // namespace dlsim
