// SPDX-License-Identifier: Apache-2.0
// The commands that are timed as a whole.
#pragma once

#include <string>
#include <vector>

#include "sim/bench/bench_traces.h"
#include "sim/bench/read_limit.h"

namespace dlsim::sim {

struct CommandCase {
  // Command/COMMAND/format/what/shape/cache/threads:N, or Stream/pread/... for the limit.
  std::string name;
  TraceShape shape = TraceShape::kLarge;
  int threads = 1;
  // After the program's name; a trace stands for kTraceArgument, a file that is not there for
  // kOutputArgument. Empty for the limit.
  std::vector<std::string> arguments;

  bool is_limit() const { return arguments.empty(); }
};

inline constexpr const char* kTraceArgument = "{trace}";
inline constexpr const char* kOutputArgument = "{output}";

// Returns the limit and the commands for each shape and number of threads. Cold files are read by
// the commands alone that go through them once.
std::vector<CommandCase> CommandCases(const std::vector<int>& threads, FileCache cache);

}  // namespace dlsim::sim
