// SPDX-License-Identifier: Apache-2.0
// Times work on a stream by events.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "dlsim/gpu/stream.h"

namespace dlsim::gpu_check {

// Runs all jobs in turn, `rounds` times after one round that is not counted, so that slow phases of
// the device spread over all. Returns the median time of each in seconds.
std::vector<double> MedianSeconds(std::span<const std::function<void()>> jobs, int rounds,
                                  gpu::Stream stream);

}  // namespace dlsim::gpu_check
