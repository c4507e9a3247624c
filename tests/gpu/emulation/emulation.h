// SPDX-License-Identifier: Apache-2.0
// What tests tell the emulated CUDA runtime, and what it tells them.
//
// Work that is put into a stream is done only when something waits for it, so that a wait that is
// missing is seen. In builds with the address sanitizer, device memory can be touched only by
// kernels of its device and by copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "emulated/types.h"

namespace dlsim::emulation {

// For tests that run on the devices of a machine, too, which do no more than tests/gpu/real says.
inline constexpr bool kIsEmulated = true;
inline constexpr const char* kNeeded = "";

// A machine with devices that are alike.
struct Machine {
  int device_count = 1;
  size_t memory_bytes = size_t{1} << 30;  // of each device
  int compute_capability = 90;            // 10 * major + minor
  int multiprocessor_count = 4;
  std::string device_name = "Emulated device";
  cudaError_t driver = cudaSuccess;  // what every call returns if there is no usable driver
  int old_driver = 0;                // the version of one that is too old; 0 = there is none
};

// Resets to this machine: drops work that was not done, forgets failures, sets counters to 0
// and the order of threads to ascending. Throws std::logic_error if something is still allocated.
void Reset(const Machine& machine = {});

// The order in which threads of a block get their turns.
enum class ThreadOrder { kAscending, kDescending, kShuffled };
void SetThreadOrder(ThreadOrder order, uint64_t seed = 0);

// Makes the n-th call from now (from 1) of this name fail; with an empty name, the n-th of all that
// can fail for lack of resources or because of the device: all but those that free and ask.
void FailCall(std::string_view name, uint64_t n, cudaError_t error);

// Makes the n-th launch from now fail when it is run: what waits for it returns `error`, and so
// does every later call, as after a crash of a kernel.
void FailKernel(uint64_t n, cudaError_t error = cudaErrorIllegalAddress);

// Returns the name of the call that was made to fail; empty if it has not come to that.
std::string FailedCall();

// Number of objects that were made and not yet freed.
struct LiveObjects {
  size_t device_allocations = 0;
  size_t host_allocations = 0;
  size_t streams = 0;
  size_t events = 0;

  size_t total() const { return device_allocations + host_allocations + streams + events; }
};
LiveObjects Live();

// What was done since Reset.
struct CallCounts {
  uint64_t allocations = 0;       // of memory, streams and events, and the freeing of them
  uint64_t synchronizations = 0;  // calls that wait for a stream, an event or a device
  uint64_t launches = 0;
  uint64_t copies = 0;           // and fills of memory
  uint64_t pageable_copies = 0;  // those among them from or to memory that is not pinned
};
CallCounts Counts();

// Returns how often a call of this name was made since Reset.
uint64_t CountOf(std::string_view name);

}  // namespace dlsim::emulation
