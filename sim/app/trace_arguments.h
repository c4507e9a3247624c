// SPDX-License-Identifier: Apache-2.0
// The arguments that name a trace, shared by the commands that read one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim::sim {

struct TraceArguments {
  std::vector<std::string> paths;
  TraceOptions options;
};

// Adds --tensors, --ranks and --npy-void.
void AddReadingOptions(CLI::App& command, TraceOptions& options);

enum class TraceInput : uint8_t { kTrace, kTraceOrProfile };

// Adds these and TRACE... `input` tells the help what the command takes.
void AddTraceArguments(CLI::App& command, TraceArguments& arguments,
                       TraceInput input = TraceInput::kTraceOrProfile);

// Throws UsageError if a path is that of a profile.
void RefuseProfiles(const TraceArguments& arguments);

// Opens the trace that the arguments name, none of them a profile. Throws InputError if it has no
// matching tensor.
TraceReader OpenTrace(const TraceArguments& arguments);

// Says that a pattern matches nothing.
std::string NoTensorMatches(const std::string& glob);

// Throws InputError with this problem if no step has tensors: an empty result would look like a
// good one.
void RequireTensors(const TraceArguments& arguments, const std::string& problem, size_t steps,
                    const std::function<bool(size_t step)>& has_tensors);

}  // namespace dlsim::sim
