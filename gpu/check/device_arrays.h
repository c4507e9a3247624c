// SPDX-License-Identifier: Apache-2.0
// Copies between the host and the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/gpu/tensor_list.h"
#include "gpu/base/device_buffer.h"

namespace dlsim::gpu_check {

// Returns a copy on the current device; waits for it.
template <class T>
gpu::DeviceBuffer<T> ToDevice(std::span<const T> from, gpu::Stream stream) {
  gpu::DeviceBuffer<T> to(from.size());
  if (from.empty()) return to;
  gpu::CheckCuda(
      cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync");
  gpu::CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return to;
}

// Returns `count` elements of device memory after all that the stream has to do.
template <class T>
std::vector<T> ToHost(const T* from, size_t count, gpu::Stream stream) {
  std::vector<T> to(count);
  if (count > 0) {
    gpu::CheckCuda(
        cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
  }
  gpu::CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return to;
}

// Describes float32 values on the device.
inline gpu::DeviceTensor TensorAt(const void* values, uint64_t elements, void* codes) {
  gpu::DeviceTensor tensor;
  tensor.values = values;
  tensor.elements = elements;
  tensor.codes = codes;
  return tensor;
}

}  // namespace dlsim::gpu_check
