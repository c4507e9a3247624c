// SPDX-License-Identifier: Apache-2.0
// How reports write scales, shares and counts: one notation in all of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dlsim::sim {

// Returns a scale as a power of two: "2^15", "2^50.83"; 0, 1 and infinity as such.
std::string ScaleText(double scale);

// Returns the shortest decimal text that reads back as this scale; powers of two up to 2^53 and
// other integers have no exponent.
std::string ScaleNumber(double scale);

bool IsPowerOfTwo(double value);

// Returns a share as a percentage that tells "none" from "few".
std::string Percent(double fraction);

// Returns "1 step", "12 steps".
std::string Counted(uint64_t count, std::string_view noun);

// Returns the value of a policy's parameter: one that is a scale, told by its name, as a power of
// two if it is one; else "2e+15".
std::string ParameterText(std::string_view name, double value);

// The same of a value that stands as text, which may be no number.
std::string ParameterText(std::string_view name, const std::string& value);

}  // namespace dlsim::sim
