// SPDX-License-Identifier: Apache-2.0
// How numbers are written: in reports, in settings and as other programs write them; the locale
// never matters.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/loss_scaler.h"

namespace dlsim::sim {

// Returns the number; NaN without the sign that a computed one happens to have, which differs among
// compilers and processors. What writes a computed number passes it through this.
template <class T>
T WithoutNanSign(T number) {
  return std::isnan(number) ? std::numeric_limits<T>::quiet_NaN() : number;
}

// Returns a scale as a power of two: "2^15", "2^50.83"; 0, 1 and infinity as such.
std::string ScaleText(double scale);

// Returns the shortest decimal text that reads back as this scale; powers of two up to 2^53 and
// other integers have no exponent.
std::string ScaleNumber(double scale);

bool IsPowerOfTwo(double value);

// Returns integers below 1e15 without exponent, and others as the shortest text that reads back.
std::string NumberText(double value);

// Returns a share as a percentage that tells "none" from "few".
std::string Percent(double fraction);

// Returns "12.3 MiB": in the largest binary unit that leaves at least 1, of which KiB is the least.
std::string Bytes(uint64_t bytes);

// Returns "a, b, c and 4 more": the first three of `all`, of which `names` are at least these.
std::string FirstNames(const std::vector<std::string>& names, size_t all);
inline std::string FirstNames(const std::vector<std::string>& names) {
  return FirstNames(names, names.size());
}

// Returns "1 step", "12 steps".
std::string Counted(uint64_t count, std::string_view noun);

// Returns the value of a policy's parameter: one that is a scale, recognized by its name, as a
// power of two if it is one; else "2e+15". The same of a value that is given as text, which may not
// be a number, and of several parameters, as "KEY VALUE, KEY VALUE".
std::string ParameterText(const NamedValue& parameter);
std::string ParameterText(std::string_view name, const std::string& value);
std::string ParametersText(std::span<const NamedValue> parameters);

// Returns the text of Python's float.hex(): "0x1.8000000000000p+1", "0x0.0p+0", "-inf", "nan".
std::string HexFloat(double value);

// Returns the text of Python's repr() of a finite float, as it appears in the messages of Python
// code: "2e-14", "1e+39", "100.0".
std::string PythonRepr(double value);

}  // namespace dlsim::sim
