// SPDX-License-Identifier: Apache-2.0
// Runs the program dlsim_bench in several processes and merges what they measured into one file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/base/json_value.h"

namespace dlsim::sim {

struct BenchRequest {
  std::string filter, sizes;                       // as for KernelSelection
  std::string threads, targets, dram_mib, device;  // for dlsim_bench, which has defaults
  uint64_t repetitions = 11;
  uint64_t processes = 0;  // 0: one per repetition
  double min_time = 0.05;  // seconds per repetition
};

// Called after each process with the number of those done.
using ProcessObserver = std::function<void(uint64_t done)>;

// Returns the number of processes that the request means; throws UsageError.
uint64_t ProcessCount(const BenchRequest& request);

// Returns the path of dlsim_bench: $DLSIM_BENCH, or beside this program. Throws InputError.
std::string FindBenchProgram();

// Returns the names of the benchmarks that the request selects; throws UsageError if none.
std::vector<std::string> ListKernels(const std::string& program, const BenchRequest& request);

// Runs the benchmarks and returns a document of schema dlsim.bench/1, which Google Benchmark's own
// tools read, too. Each process has a memory layout of its own, and what one repetition of a kernel
// shares with the next should be no more than what two runs share.
Json RunBenchmarks(const std::string& program, const BenchRequest& request,
                   const ProcessObserver& observer);

// Returns the program and the options that make it run `names`, which the request selects.
std::vector<std::string> BenchArguments(const std::string& program, const BenchRequest& request,
                                        const std::vector<std::string>& names);

// Runs the program once and returns its JSON.
Json RunBenchProgram(std::vector<std::string> arguments);

// Returns the block "dlsim" for results measured in this `context` of Google Benchmark.
Json DlsimBlock(const Json& context, std::string_view kind);

}  // namespace dlsim::sim
