// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/tabulate.h"
#include "gpu/base/device_buffer.h"
#include "python/src/device_arrays.h"

namespace dlsim::python {

void RequireCuda(const std::string&, int) {}

void EncodeOnDevice(const DeviceQueue& queue, const ArrayConversion& how,
                    const gpu::DeviceTensor& tensor) {
  const gpu::CurrentDevice current(queue.device);
  gpu::Encode(how, tensor, queue.stream);
}

void DecodeOnDevice(const DeviceQueue& queue, const Format& format, const void* codes,
                    float* values, uint64_t count) {
  const gpu::CurrentDevice current(queue.device);
  gpu::Decode(format, codes, values, count, queue.stream);
}

std::vector<TensorTable> TabulateOnDevice(const DeviceQueue& queue,
                                          std::span<const gpu::DeviceTensor> tensors) {
  const gpu::CurrentDevice current(queue.device);
  return gpu::Tabulate(tensors, queue.stream);
}

}  // namespace dlsim::python
