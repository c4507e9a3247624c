// SPDX-License-Identifier: Apache-2.0
// The kernels of dlsim as benchmarks: a table of kernels, formats and modes.
#pragma once

#include <string>
#include <vector>

#include "bench/workload.h"

namespace dlsim::bench {

// Returns every kernel for each of these SIMD targets.
std::vector<Kernel> DlsimKernels(const std::vector<std::string>& targets);

}  // namespace dlsim::bench
