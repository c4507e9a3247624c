// SPDX-License-Identifier: Apache-2.0
// What no question changes of a chunk: found once for all questions about it.
#pragma once

#include <cstdint>

#include "dlsim/tensor_stats.h"

namespace dlsim {

struct ChunkInputs {
  bool finite = false;  // all inputs are, and the rest is known; always false without such kernels
  float absmax = 0;
  uint32_t smallest_less_one = 0;  // bits of the smallest magnitude that is not zero, less one
  uint64_t zeros = 0;
  double sum_of_squares = 0;

  // Of finite inputs, without what questions ask.
  TensorStats Stats(uint64_t elements) const {
    TensorStats stats;
    stats.elements = elements;
    stats.zeros = zeros;
    stats.absmax = absmax;
    stats.sum_of_squares = sum_of_squares;
    return stats;
  }
};

}  // namespace dlsim
