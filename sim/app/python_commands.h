// SPDX-License-Identifier: Apache-2.0
// What the commands take that only the Python package has, for shell completion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

struct PythonOption {
  std::string name;  // without "--"
  bool takes_value = false;
};

// Return the long options of a command, and the words that its first argument may be; empty for
// those that are not written in Python.
std::vector<PythonOption> PythonOptions(std::string_view command);
std::vector<std::string> PythonArguments(std::string_view command);

}  // namespace dlsim::sim
