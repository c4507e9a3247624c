// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime goes through CheckCuda, and every launch through Launch, so that
// no failure is lost. What the runtime hands out has an owner: destructors release and never throw.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dlsim/gpu.h"

namespace dlsim::gpu {

// Throws Error (exit code 3) `call: what CUDA says` unless `status` is success. The error is taken
// from the runtime, so that the next call starts clean unless the device is lost.
void CheckCuda(cudaError_t status, std::string_view call);

// Throws Error `call: what ...` unless `pointer` is to memory of the current device, managed memory
// included, and aligned to `alignment` bytes.
void CheckPointer(std::string_view call, std::string_view what, const void* pointer,
                  size_t alignment);

struct LaunchShape {
  uint64_t blocks = 0;  // of a grid of one dimension
  uint32_t threads = 0;
  size_t shared_bytes = 0;  // dynamic
};

// Launches `kernel` on the stream; `call` names it in errors. A grid without blocks is no launch.
template <class... Parameters, class... Arguments>
void Launch(std::string_view call, void (*kernel)(Parameters...), const LaunchShape& shape,
            Stream stream, Arguments&&... arguments) {
  if (shape.blocks == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), call);
}

// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    CheckCuda(cudaGetDevice(&saved_), "cudaGetDevice");
    CheckCuda(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
  }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(saved_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int saved_ = 0;
};

// An array that one of the runtime's allocators made and its twin frees.
template <class T, class Allocator>
class CudaArray {
 public:
  CudaArray() = default;
  explicit CudaArray(size_t size) : size_(size) {
    if (size > 0) data_ = static_cast<T*>(Allocator::Allocate(size * sizeof(T)));
  }
  CudaArray(CudaArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  CudaArray& operator=(CudaArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~CudaArray() {
    if (data_ != nullptr) Allocator::Free(data_);
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * sizeof(T); }
  std::span<T> span() const { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

struct DeviceMemory {
  static void* Allocate(size_t bytes) {
    void* data = nullptr;
    CheckCuda(cudaMalloc(&data, bytes), "cudaMalloc(" + std::to_string(bytes) + " bytes)");
    return data;
  }
  static void Free(void* data) { static_cast<void>(cudaFree(data)); }
};

struct PinnedMemory {
  static void* Allocate(size_t bytes) {
    void* data = nullptr;
    CheckCuda(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
              "cudaHostAlloc(" + std::to_string(bytes) + " bytes)");
    return data;
  }
  static void Free(void* data) { static_cast<void>(cudaFreeHost(data)); }
};

// On the current device, uninitialized.
template <class T>
using DeviceBuffer = CudaArray<T, DeviceMemory>;

// On the host, where the device copies from and to without the host's help; uninitialized.
template <class T>
using PinnedBuffer = CudaArray<T, PinnedMemory>;

// A stream that does not wait for the default stream.
class OwnedStream {
 public:
  OwnedStream() {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~OwnedStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace dlsim::gpu
