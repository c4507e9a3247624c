// SPDX-License-Identifier: Apache-2.0
// The order in which a sweep takes float32 inputs, and the hash of its outputs.
#pragma once

#include <cstdint>

#include "dlsim/host_device.h"

namespace dlsim::gpu_check {

inline constexpr uint64_t kAllInputs = uint64_t{1} << 32;

// Element i of a sweep is a permutation of all 2^32 bit patterns, so that the first elements alone
// are a sample of all binades. `run_bits`: runs of 2^run_bits neighbours stay together; with 0,
// neighbouring threads meet values of all kinds.
DLSIM_HOST_DEVICE constexpr uint32_t InputBits(uint32_t i, uint32_t run_bits) {
  constexpr uint32_t kOddStep = 0x9E3779B1;
  const uint32_t run = i >> run_bits;
  return ((run * kOddStep) << run_bits) | (i & ((uint32_t{1} << run_bits) - 1));
}

// The share of one output in a sum over all, which depends on its position.
DLSIM_HOST_DEVICE constexpr uint64_t MixCode(uint32_t position, uint32_t code) {
  const uint64_t mixed = (uint64_t{position} << 32 | code) * 0x9E3779B97F4A7C15;
  return mixed ^ (mixed >> 32);
}

}  // namespace dlsim::gpu_check
