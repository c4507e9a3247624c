// SPDX-License-Identifier: Apache-2.0
// Runs workloads under Google Benchmark and reports them under their own names.
#pragma once

#include <vector>

#include "bench/options.h"
#include "bench/workload.h"

namespace dlsim::bench {

// Registers the workloads, runs them and prints the results. Throws Error (exit code 2) for options
// that Google Benchmark does not know.
void RunWorkloads(const std::vector<Workload>& workloads, const Options& options,
                  ArrayStore& store);

}  // namespace dlsim::bench
