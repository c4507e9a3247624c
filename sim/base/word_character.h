// SPDX-License-Identifier: Apache-2.0
// What names in scripts, configurations and logs are made of.
#pragma once

namespace dlsim::sim {

// True for ASCII letters and digits, and the underscore.
constexpr bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace dlsim::sim
