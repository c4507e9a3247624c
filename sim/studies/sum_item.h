// SPDX-License-Identifier: Apache-2.0
// One reduction of one step: its emulated results against float64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/accumulate.h"
#include "sim/studies/sum_runs.h"
#include "src/sums/precision_level.h"

namespace dlsim::sim {

// A reduction of recorded values: a sum along an axis, or of products.
struct SumItem {
  std::string reduction;  // "micro", "norm", "sum", "axis:0", "dot", "matmul"
  Operation operation = Operation::kReduction;
  std::string tensor, other;            // `other` is empty but for products of two tensors
  int64_t step = 0, micro = -1;         // micro -1: the step has none, or the sum is over them
  std::span<const float> a;             // as recorded
  std::span<const float> b;             // of products
  AxisShape axis;                       // of sums of elements
  std::optional<MatMulShape> products;  // of sums of products
};

// How an emulated result differs from float64. Vectors are compared by L2 norms. Errors are nan if
// the reference is not finite, and infinite if only the result is not.
struct SumOutcome {
  double reference = 0;  // the value, or the L2 norm of a vector
  double result = 0;     // the same of the emulated one

  // The difference divided by the sums of the magnitudes of the terms: what summing did, however
  // much the terms cancel. Then the same of a float64 sum of the rounded inputs.
  double term_error = 0, input_error = 0;

  double relative_error = 0;  // the difference divided by the reference
  double max_error = 0;       // largest absolute difference of an element
  uint64_t outputs = 0;       // elements
  AdditionCounts counts;
};

// Evaluates an item by each run; inputs are multiplied by `scale` in float32 first and results
// divided by it in float64.
std::vector<SumOutcome> Evaluate(const SumItem& item, std::span<const SumRun> runs, float scale,
                                 uint64_t seed);

}  // namespace dlsim::sim
