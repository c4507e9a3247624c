// SPDX-License-Identifier: Apache-2.0
// Sentences in lines that fit a terminal.
#pragma once

#include <cstddef>
#include <string>

namespace dlsim::sim {

inline constexpr size_t kTerminalColumns = 80;

// Breaks a line at blanks; what follows is indented.
std::string Wrap(const std::string& line);

}  // namespace dlsim::sim
