// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/device_arrays.h"

#include <cstring>

namespace dlsim::gpu_check {

gpu::DeviceTensor TensorAt(const void* values, uint64_t elements, void* codes) {
  gpu::DeviceTensor tensor;
  tensor.values = values;
  tensor.elements = elements;
  tensor.codes = codes;
  return tensor;
}

DeviceTensors ToDevice(std::span<const HostTensor> from, size_t offset_elements,
                       gpu::Stream stream) {
  constexpr size_t kAlignment = 16;
  std::vector<size_t> begins;
  size_t size = 0;
  for (const HostTensor& tensor : from) {
    begins.push_back(size + offset_elements * DTypeSize(tensor.dtype));
    size = (begins.back() + tensor.bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::vector<std::byte> bytes(size + kAlignment);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].bytes.empty()) continue;
    std::memcpy(bytes.data() + begins[i], from[i].bytes.data(), from[i].bytes.size());
  }
  DeviceTensors to;
  to.memory = ToDevice(std::span<const std::byte>(bytes), stream);
  for (size_t i = 0; i < from.size(); ++i) {
    gpu::DeviceTensor tensor;
    tensor.values = to.memory.data() + begins[i];
    tensor.elements = from[i].elements();
    tensor.dtype = from[i].dtype;
    tensor.grad_scale = from[i].grad_scale;
    tensor.random_stream = from[i].random_stream;
    to.tensors.push_back(tensor);
  }
  return to;
}

}  // namespace dlsim::gpu_check
