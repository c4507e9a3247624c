// SPDX-License-Identifier: Apache-2.0
// Makes the runs that Replay and Sweep take:
//   const std::string trace[] = {"runs/mlp"};
//   const auto results = Replay(TraceReader::Open(trace, {}),
//                               {MakeRun("cb16", "cerebras-2.10"), MakeRun("fp16", "torch")}, {});
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// Returns the run of a policy as its stack has it, with KEY=VALUE settings for its parameters.
// Throws Error (exit code 2) for unknown names, and PolicyRefusal.
ReplayRun MakeRun(std::string_view format, std::string_view policy,
                  std::span<const std::string> settings = {});

// The same for a policy that is configured already.
ReplayRun MakeRun(const NamedFormat& format, const PolicyInfo& policy, ConfiguredScaler configured);

}  // namespace dlsim::sim
