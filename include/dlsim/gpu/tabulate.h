// SPDX-License-Identifier: Apache-2.0
// Tabulates arrays in device memory: the tables that Tabulate gives on the CPU.
#pragma once

#include <span>
#include <vector>

#include "dlsim/gpu/stream.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/table.h"

namespace dlsim::gpu {

// Returns the table of each tensor, after the work that is in the stream. Memory is of the current
// device. Allocates, and waits for the results. Throws Error that names the call if an argument is
// wrong or a launch fails.
std::vector<TensorTable> Tabulate(std::span<const DeviceTensor> tensors, Stream stream);

}  // namespace dlsim::gpu
