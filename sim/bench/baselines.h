// SPDX-License-Identifier: Apache-2.0
// Where the blessed results of each processor lie, be it a CPU or a GPU.
#pragma once

#include <string>
#include <string_view>

#include "sim/bench/benchmark_file.h"

namespace dlsim::sim {

// Returns "amd-epyc-9654-96-core-processor" for "AMD EPYC 9654 96-Core Processor".
std::string CpuSlug(std::string_view cpu_model);

// Returns the path of the baseline for results such as `file`; throws InputError if the file does
// not tell its processor.
std::string BaselinePath(const std::string& directory, const BenchmarkFile& file);

// Reads that baseline; throws InputError that says how to make one if there is none.
BenchmarkFile ReadBaseline(const std::string& directory, const BenchmarkFile& file);

// Stores the results at `path` as the baseline of their processor and returns its path. Throws
// InputError for what could not be compared with.
std::string Bless(const std::string& path, const std::string& directory);

}  // namespace dlsim::sim
