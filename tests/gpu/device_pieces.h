// SPDX-License-Identifier: Apache-2.0
// Tensors of a test in device memory, cut into pieces, and the comparison of their results.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "dlsim/tensor_stats.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_buffer.h"
#include "gpu/base/piece.h"

namespace dlsim::gpu {

template <class T>
DeviceBuffer<T> Upload(std::span<const T> values) {
  DeviceBuffer<T> buffer(values.size());
  if (!values.empty()) Upload(values, buffer);
  return buffer;
}

template <class T>
std::vector<T> Download(const DeviceBuffer<T>& buffer) {
  std::vector<T> values(buffer.size());
  if (!values.empty()) {
    CheckCuda(cudaMemcpy(values.data(), buffer.data(), buffer.size_bytes(), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
  }
  return values;
}

// Elements of any type on the device, `offset` bytes into an allocation.
class OffsetBytes {
 public:
  OffsetBytes(std::span<const std::byte> bytes, size_t offset)
      : offset_(offset), buffer_(offset + bytes.size()) {
    if (bytes.empty()) return;
    CheckCuda(
        cudaMemcpy(buffer_.data() + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  const std::byte* data() const { return buffer_.data() + offset_; }

 private:
  size_t offset_;
  DeviceBuffer<std::byte> buffer_;
};

}  // namespace dlsim::gpu
