// SPDX-License-Identifier: Apache-2.0
// What tests say to the emulated CUDA runtime, for those that run on a device of this machine: it
// is as it is, counts nothing, and fails only by itself.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dlsim::emulation {

inline constexpr bool kIsEmulated = false;
inline constexpr const char* kNeeded = "needs the emulated runtime";

struct Machine {
  int device_count = 1;
};
inline void Reset(const Machine& = {}) {}

enum class ThreadOrder { kAscending, kDescending, kShuffled };
inline void SetThreadOrder(ThreadOrder, uint64_t = 0) {}

// Tests that need failures, or what was counted, ask kIsEmulated first.
inline void FailCall(std::string_view, uint64_t, cudaError_t) {}
inline std::string FailedCall() { return ""; }

struct LiveObjects {
  size_t device_allocations = 0, host_allocations = 0, streams = 0, events = 0;

  size_t total() const { return 0; }
};
inline LiveObjects Live() { return {}; }

struct CallCounts {
  uint64_t allocations = 0, synchronizations = 0, launches = 0, copies = 0, pageable_copies = 0;
};
inline CallCounts Counts() { return {}; }

}  // namespace dlsim::emulation
