// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "dlsim/error.h"
#include "python/src/device_arrays.h"

namespace dlsim::python {

void RequireCuda(const std::string& place, int device) {
  throw UsageError(place, "this dlsim was built without CUDA",
                   "a tensor on the CPU, or a build with -DDLSIM_ENABLE_CUDA=ON",
                   "one on cuda:" + std::to_string(device));
}

void EncodeOnDevice(const DeviceQueue& queue, const ArrayConversion&, const gpu::DeviceTensor&) {
  RequireCuda("values", queue.device);
}

void DecodeOnDevice(const DeviceQueue& queue, const Format&, const void*, float*, uint64_t) {
  RequireCuda("codes", queue.device);
}

std::vector<TensorTable> TabulateOnDevice(const DeviceQueue& queue,
                                          std::span<const gpu::DeviceTensor>) {
  RequireCuda("values", queue.device);
  return {};
}

}  // namespace dlsim::python
