// SPDX-License-Identifier: Apache-2.0
// Streams: the fastest loops that move the bytes of a conversion without converting, its limit.
#pragma once

#include <vector>

#include "bench/workload.h"

namespace dlsim::bench {

// Returns the streams of each traffic for the two widest vectors of this machine: with plain loads
// and stores, with software prefetch, and with non-temporal stores.
std::vector<Kernel> Streams();

// Returns the stream of this traffic, without non-temporal stores, that runs fastest on this size
// and number of threads; finds it out when first asked. Thread-safe.
const Workload& LimitOf(Traffic traffic, Size size, int threads, ArrayStore& store);

}  // namespace dlsim::bench
