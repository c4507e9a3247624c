// SPDX-License-Identifier: Apache-2.0
// Counts instructions of single kernel calls under valgrind's callgrind.
#pragma once

#include <vector>

#include "bench/options.h"
#include "bench/workload.h"

namespace dlsim::bench {

// Calls each workload once to warm up, then once with instrumentation on, and dumps the counts
// under the workload's name. Prints the names in order. Without valgrind it just calls.
void CountInstructions(const std::vector<Workload>& workloads, const Options& options,
                       ArrayStore& store);

}  // namespace dlsim::bench
