// SPDX-License-Identifier: Apache-2.0
// Checks for mistakes of the programmer, not of the user; they throw instead of aborting.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {

// Throws Error (exit code 70) unless `condition` holds.
inline void Check(bool condition, const char* text, const char* file) {
  if (!condition) throw Error(ErrorKind::kInternal, file, "broken promise", text);
}

// Throws Error of wrong usage unless the array `array` of the public function `function` has
// `expected` elements.
inline void CheckLength(std::string_view function, std::string_view array, size_t expected,
                        size_t got) {
  if (got == expected) return;
  throw UsageError(std::string(function) + ": " + std::string(array), "wrong length",
                   std::to_string(expected), std::to_string(got));
}

}  // namespace dlsim

#define DLSIM_CHECK(condition) ::dlsim::Check((condition), #condition, __FILE__)
