// SPDX-License-Identifier: Apache-2.0
// The arguments that name a trace, shared by the commands that read one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim {

struct TraceArguments {
  std::vector<std::string> paths;
  TraceOptions options;
  bool no_mmap = false;
};

// Adds TRACE..., --tensors, --no-mmap, --ranks and --npy-void.
void AddTraceArguments(CLI::App& command, TraceArguments& arguments);

// Opens the trace that the arguments name. Throws InputError if it has no matching tensor.
TraceReader OpenTrace(const TraceArguments& arguments);

}  // namespace dlsim
