// SPDX-License-Identifier: Apache-2.0
// The groups of checks, each on the current device.
#pragma once

#include <string>
#include <vector>

#include "gpu/check/options.h"
#include "gpu/check/report.h"

namespace dlsim::gpu_check {

// Every conversion of every checked format over float32 inputs, against the scalar reference on the
// device, and against the host's where the effort says so.
void SweepEncode(const Options& options, Report& report);

// A tensor with more than 2^32 elements, where the effort and the memory allow it.
void CheckLargeTensor(const Options& options, Report& report);

// What 300 tensors of 10 to 10^7 elements in one launch cost beside one large tensor.
void TimeLaunches(const Options& options, Report& report);

// Times everything against a copy and a read of the same bytes.
void TimeKernels(const Options& options, Report& report);

// Reads timings of other programs, a line `name TAB data set TAB GB/s` each. Throws Error.
std::vector<TimedRow> ReadPeers(const std::string& path);

}  // namespace dlsim::gpu_check
