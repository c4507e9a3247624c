// SPDX-License-Identifier: Apache-2.0
// Owners of what the CUDA runtime hands out. Destructors release and never throw.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "dlsim/gpu/tensor_list.h"
#include "gpu/base/check_cuda.h"

namespace dlsim::gpu {

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

// Copies to the current device and waits until any stream may read it there: cudaMemcpy from
// pageable memory may return before, and not all streams wait for the default one.
template <class T>
void Upload(std::span<const T> from, const DeviceBuffer<T>& to) {
  CheckCuda(cudaMemcpy(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice),
            "cudaMemcpy");
  CheckCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

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

// A point in a stream that can be waited for and, with Timing::kOn, timed.
enum class Timing { kOff, kOn };
class OwnedEvent {
 public:
  explicit OwnedEvent(Timing timing = Timing::kOff) {
    const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
    CheckCuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  ~OwnedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  void Record(Stream stream) { CheckCuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void Wait() const { CheckCuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace dlsim::gpu
