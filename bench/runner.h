// SPDX-License-Identifier: Apache-2.0
// Runs workloads under Google Benchmark and reports them under their own names.
#pragma once

#include <vector>

#include "bench/gpu_kernels.h"
#include "bench/options.h"
#include "bench/workload.h"

namespace dlsim::bench {

// Registers the workloads, runs them and prints the results. Throws Error (exit code 2) for options
// that Google Benchmark does not know.
void RunWorkloads(const std::vector<Workload>& workloads, const Options& options,
                  ArrayStore& store);

// The same for benchmarks of a device, which time themselves.
void RunGpuBenchmarks(const std::vector<GpuBenchmark>& benchmarks, const Options& options);

}  // namespace dlsim::bench
