// SPDX-License-Identifier: Apache-2.0
// How much of all inputs a sweep takes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace dlsim::gpu {

// The stride between inputs: all with DLSIM_EXHAUSTIVE=full, which takes some minutes for each
// test.
inline uint32_t SweepStride() {
  constexpr uint32_t kPart = 29;
  const char* const effort = std::getenv("DLSIM_EXHAUSTIVE");
  return effort != nullptr && std::string_view(effort) == "full" ? 1 : kPart;
}

}  // namespace dlsim::gpu
