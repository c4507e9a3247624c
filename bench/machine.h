// SPDX-License-Identifier: Apache-2.0
// What benchmarks need to know about the machine.
#pragma once

#include <cstddef>
#include <string>

namespace dlsim::bench {

// The name of the processor as Linux gives it, or "unknown".
std::string CpuModel();

// Bytes of a cache of the first core; 0 if unknown. Level 0 stands for the last level.
size_t CacheBytes(int level);

}  // namespace dlsim::bench
