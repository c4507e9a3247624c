// SPDX-License-Identifier: Apache-2.0
// What the emulated runtime knows, behind one lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/emulation.h"

// A stream; the same type as behind CUDA's handle.
struct CUstream_st {
  int device = 0;
  bool is_default = false;
  bool waits_for_default = false;  // a stream that was not made with cudaStreamNonBlocking
  bool is_alive = true;            // not yet destroyed
  std::deque<std::function<void()>> work;
  uint64_t begun = 0;     // number of operations that were taken from `work`
  uint64_t enqueued = 0;  // number of operations ever put into `work`
};

namespace dlsim::emulation {

using StreamPointer = std::shared_ptr<CUstream_st>;

// A recording of an event: a point in a stream.
struct Recording {
  StreamPointer stream;
  uint64_t position = 0;
  bool is_done = false;
  std::chrono::steady_clock::time_point time;
};

}  // namespace dlsim::emulation

struct CUevent_st {
  int device = 0;
  bool has_timing = false;
  std::shared_ptr<dlsim::emulation::Recording> recording;  // the last
};

namespace dlsim::emulation {

enum class Place { kDevice, kPinned };

struct Allocation {
  Place place = Place::kDevice;
  int device = 0;
  size_t bytes = 0;
};

struct PendingFailure {
  std::string name;
  uint64_t countdown = 0;  // 0 = none
  cudaError_t error = cudaSuccess;
};

struct RuntimeState {
  std::recursive_mutex mutex;
  Machine machine;
  cudaError_t last_error = cudaSuccess;
  cudaError_t lost = cudaSuccess;  // after a crash of a kernel
  std::map<const std::byte*, Allocation> allocations;
  std::vector<StreamPointer> streams;  // those with work that were destroyed, too
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<std::pair<int, const void*>, size_t> shared_limits;  // by device and kernel
  PendingFailure failing_call;
  PendingFailure failing_kernel;
  std::string failed_call;
  int kernel_device = -1;  // whose memory kernels can touch now
  CallCounts counts;
  std::map<std::string, uint64_t, std::less<>> calls;
};

RuntimeState& TheState();

// The calling thread's device.
int& ThisDevice();

// Device memory can be touched only by kernels of its device, until the call ends that runs them,
// and where a copy or fill is at work.
void AllowKernel(int device);
void ForbidKernels();

class RangeAccess {
 public:
  RangeAccess(const void* begin, size_t bytes);
  ~RangeAccess();
  RangeAccess(const RangeAccess&) = delete;
  RangeAccess& operator=(const RangeAccess&) = delete;

 private:
  const void* begin_;
  size_t bytes_;
};

// What a call may do to whoever calls it.
enum class CallKind { kAsk, kAllocate, kFree, kEnqueue, kSynchronize };

// Counts a call; returns the error with which it ends before it has begun, if it does.
cudaError_t BeginCall(std::string_view name, CallKind kind);

// Makes a call of the runtime: `body` returns its error.
template <class Body>
cudaError_t Api(std::string_view name, CallKind kind, const Body& body) {
  RuntimeState& state = TheState();
  const std::lock_guard lock(state.mutex);
  struct AtEnd {
    ~AtEnd() { ForbidKernels(); }
  } at_end;
  cudaError_t error = BeginCall(name, kind);
  if (error == cudaSuccess) error = body(state);
  if (error == cudaSuccess && kind == CallKind::kSynchronize) error = state.lost;
  if (error != cudaSuccess && error != cudaErrorNotReady) state.last_error = error;
  return error;
}

// Returns the allocation that holds `pointer`, or one past the last of all.
std::map<const std::byte*, Allocation>::iterator FindAllocation(const void* pointer);
void FreeAllocation(std::map<const std::byte*, Allocation>::iterator allocation);

// Returns the stream of a handle, null if it is none; the null handle is this device's default.
StreamPointer FindStream(cudaStream_t handle);
StreamPointer DefaultStream(int device);

// Puts work into a stream, behind what the default stream's rules say it must wait for.
void Enqueue(const StreamPointer& stream, std::function<void()> work);
void RunStream(const StreamPointer& stream, uint64_t position);
void RunStream(const StreamPointer& stream);
void RunDevice(int device);

}  // namespace dlsim::emulation
