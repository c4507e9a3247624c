// SPDX-License-Identifier: Apache-2.0
// What other libraries offer for the same conversions, as far as they were found.
#pragma once

#include <vector>

#include "bench/workload.h"

namespace dlsim::bench {

// Returns the peers that were compiled in and that this machine can run.
std::vector<Kernel> Peers();

}  // namespace dlsim::bench
