// SPDX-License-Identifier: Apache-2.0
// Arrays in the memory of a CUDA device. A build without CUDA throws one error that says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/gpu/stream.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/table.h"

namespace dlsim::python {

// Where the work happens; the arrays lie on the device.
struct DeviceQueue {
  int device;
  gpu::Stream stream;
};

// Throws UsageError that names the argument `place` in a build without CUDA.
void RequireCuda(const std::string& place, int device);

// These only launch.
void EncodeOnDevice(const DeviceQueue& queue, const ArrayConversion& how,
                    const gpu::DeviceTensor& tensor);
void DecodeOnDevice(const DeviceQueue& queue, const Format& format, const void* codes,
                    float* values, uint64_t count);

// Waits for the results.
std::vector<TensorTable> TabulateOnDevice(const DeviceQueue& queue,
                                          std::span<const gpu::DeviceTensor> tensors);

}  // namespace dlsim::python
