// SPDX-License-Identifier: Apache-2.0
// Operations of the lanes of a warp. All lanes of the mask must come to the same one.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device_code.h"

namespace dlsim::emulation {

enum class WarpOperation {
  kSync,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kMatchAny,
  kAdd,
  kMin,
  kMax,
  kMinSigned,
  kMaxSigned,
  kAnd,
  kOr,
  kXor,
};

struct WarpRequest {
  WarpOperation operation = WarpOperation::kSync;
  uint32_t mask = 0;
  uint64_t operand = 0;
  uint32_t lane_operand = 0;  // the source lane, the distance or the lane mask of a shuffle
  uint32_t width = 32;        // of the groups of a shuffle
};

// Waits for the other lanes of the mask and returns this lane's result.
uint64_t MeetLanes(const WarpRequest& request);

template <class T>
inline T Shuffle(WarpOperation operation, unsigned mask, T value, unsigned lane, int width) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  WarpRequest request = {operation, mask, 0, lane, static_cast<uint32_t>(width)};
  std::memcpy(&request.operand, &value, sizeof(value));
  const uint64_t result = MeetLanes(request);
  std::memcpy(&value, &result, sizeof(value));
  return value;
}

inline uint32_t MeetWith(WarpOperation operation, unsigned mask, uint32_t operand) {
  return static_cast<uint32_t>(MeetLanes({operation, mask, operand}));
}

}  // namespace dlsim::emulation

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  dlsim::emulation::MeetLanes({dlsim::emulation::WarpOperation::kSync, mask});
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize) {
  return dlsim::emulation::Shuffle(dlsim::emulation::WarpOperation::kShuffle, mask, value,
                                   static_cast<unsigned>(lane), width);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  return dlsim::emulation::Shuffle(dlsim::emulation::WarpOperation::kShuffleUp, mask, value, delta,
                                   width);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  return dlsim::emulation::Shuffle(dlsim::emulation::WarpOperation::kShuffleDown, mask, value,
                                   delta, width);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  return dlsim::emulation::Shuffle(dlsim::emulation::WarpOperation::kShuffleXor, mask, value,
                                   static_cast<unsigned>(lane_mask), width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return dlsim::emulation::MeetWith(dlsim::emulation::WarpOperation::kBallot, mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return dlsim::emulation::MeetWith(dlsim::emulation::WarpOperation::kAny, mask, predicate != 0) !=
         0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return dlsim::emulation::MeetWith(dlsim::emulation::WarpOperation::kAll, mask, predicate != 0) !=
         0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t operand = 0;
  std::memcpy(&operand, &value, sizeof(value));
  return static_cast<unsigned>(
      dlsim::emulation::MeetLanes({dlsim::emulation::WarpOperation::kMatchAny, mask, operand}));
}

#define DLSIM_EMULATED_REDUCTION(name, Type, operation)                                   \
  inline Type name(unsigned mask, Type value) {                                           \
    return static_cast<Type>(dlsim::emulation::MeetWith(                                  \
        dlsim::emulation::WarpOperation::operation, mask, static_cast<uint32_t>(value))); \
  }
DLSIM_EMULATED_REDUCTION(__reduce_add_sync, unsigned, kAdd)
DLSIM_EMULATED_REDUCTION(__reduce_add_sync, int, kAdd)
DLSIM_EMULATED_REDUCTION(__reduce_min_sync, unsigned, kMin)
DLSIM_EMULATED_REDUCTION(__reduce_min_sync, int, kMinSigned)
DLSIM_EMULATED_REDUCTION(__reduce_max_sync, unsigned, kMax)
DLSIM_EMULATED_REDUCTION(__reduce_max_sync, int, kMaxSigned)
DLSIM_EMULATED_REDUCTION(__reduce_and_sync, unsigned, kAnd)
DLSIM_EMULATED_REDUCTION(__reduce_or_sync, unsigned, kOr)
DLSIM_EMULATED_REDUCTION(__reduce_xor_sync, unsigned, kXor)
#undef DLSIM_EMULATED_REDUCTION
