// SPDX-License-Identifier: Apache-2.0
// How the gradients of two recorded steps differ, tensor by tensor, in one pass over both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/measure/step_blocks.h"

namespace dlsim::sim {

// What two tensors of one shape, a and b, have in common. The float64 sums are over the elements
// that are finite in both, in the order of measure.h: the same digits for any number of threads.
struct PairSums {
  uint64_t elements = 0;

  // Elements of which one or both are not finite, but for those that are NaN in both, or the same
  // infinity.
  uint64_t nonfinite_differences = 0;

  double squares_a = 0, squares_b = 0, product = 0;
  double squares_of_difference = 0;  // of b - a

  void Merge(const PairSums& later);
};

// One tensor in two steps, with as many elements in both.
struct SourcePair {
  const TensorSources* a = nullptr;
  const TensorSources* b = nullptr;
};

// Compares the effective gradients, which are the float32 sums over the recordings of a step; one
// result per pair. Reads both block by block, on all threads. Throws Error if reading fails.
std::vector<PairSums> CompareTensors(std::span<const SourcePair> pairs);

}  // namespace dlsim::sim
