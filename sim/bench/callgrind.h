// SPDX-License-Identifier: Apache-2.0
// Counts the instructions of kernels under Valgrind: the same number at each run, on any machine.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sim/bench/bench_runner.h"

namespace dlsim::sim {

// Counts the instructions of the benchmarks that the request selects and returns a document of
// schema dlsim.bench/1 and kind "instructions". Targets default to AVX2, the widest that Valgrind
// executes. Throws InputError if Valgrind is missing.
Json CountInstructions(const std::string& program, BenchRequest request);

// Returns instructions by benchmark from Callgrind's combined dumps; throws Error (exit code 70)
// for what they are not.
std::map<std::string, uint64_t> ParseCallgrind(std::string_view dumps);

}  // namespace dlsim::sim
