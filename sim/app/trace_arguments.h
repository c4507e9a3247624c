// SPDX-License-Identifier: Apache-2.0
// The arguments that name a trace, shared by the commands that read one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "sim/app/option_rows.h"

namespace dlsim::sim {

enum class TraceInput : uint8_t { kTrace, kTraceOrProfile };

struct TraceArguments {
  std::vector<std::string> paths;
  TraceOptions options;

  // TRACE... and the options below. `input` tells the help what the command takes.
  void Visit(OptionRows& option, TraceInput input = TraceInput::kTraceOrProfile);
};

// --tensors, --ranks and --npy-void; and the last of them alone.
void VisitReading(OptionRows& option, TraceOptions& options);
void VisitNpyVoid(OptionRows& option, std::optional<DType>& npy_void);

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
