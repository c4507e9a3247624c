// SPDX-License-Identifier: Apache-2.0
// Numbers as users write them; the locale never matters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dlsim::sim {

// Returns the value of a whole text such as "65536", "-3", "2e15", "0x1.8p+3" or "2^-14". Throws
// Error (exit code 2) naming `place` for anything else and for what binary64 cannot hold; "inf"
// and "nan" are no numbers.
double ParseNumber(std::string_view text, std::string_view place);

// Like ParseNumber, for integers: "2^10" and "2e3" are integers, "0.5" is not. Plain decimals are
// exact over the whole range of int64_t.
int64_t ParseInteger(std::string_view text, std::string_view place);

// Returns the value of "true", "false", "True", "False", "1" or "0"; throws Error (exit code 2).
bool ParseBool(std::string_view text, std::string_view place);

}  // namespace dlsim::sim
