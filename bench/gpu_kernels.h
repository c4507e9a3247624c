// SPDX-License-Identifier: Apache-2.0
// The kernels of CUDA devices as benchmarks. Events on the device time them, one call at a time.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/data_sets.h"

namespace dlsim::bench {

struct GpuBenchmark {
  std::string name;  // gpu/Kernel/format/mode/DRAM/data
  std::function<void(benchmark::State&)> run;
};

// Returns all of them for the device of this index; arrays are made when the first one runs, and
// have the store's size DRAM. Throws Error (exit code 3) if the device is not usable. The store
// must live as long as they.
std::vector<GpuBenchmark> GpuBenchmarks(int device, ArrayStore& store);

}  // namespace dlsim::bench
