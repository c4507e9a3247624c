// SPDX-License-Identifier: Apache-2.0
// Checks for mistakes of the programmer, not of the user; they throw instead of aborting.
#pragma once

#include "dlsim/error.h"

namespace dlsim {

// Throws Error (exit code 70) unless `condition` holds.
inline void Check(bool condition, const char* text, const char* file) {
  if (!condition) throw Error(ErrorKind::kInternal, file, "broken promise", text);
}

}  // namespace dlsim

#define DLSIM_CHECK(condition) ::dlsim::Check((condition), #condition, __FILE__)
