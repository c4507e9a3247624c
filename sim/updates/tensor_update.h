// SPDX-License-Identifier: Apache-2.0
// One update of the followed elements of one tensor in one run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/philox.h"
#include "sim/updates/update_kernel.h"
#include "sim/updates/update_run.h"

namespace dlsim::sim {

// The elements of one tensor in one run.
struct TensorState {
  std::vector<float> weights;
  std::vector<float> first;         // momentum_buffer of SGD, exp_avg
  std::vector<float> second;        // exp_avg_sq, variance of Adafactor
  std::vector<float> max_second;    // of AMSGrad, else empty
  std::vector<float> compensation;  // of Kahan, else empty
  UpdateCounts counts;
};

// What all runs with the same settings receive.
struct TensorStep {
  std::span<const float> gradients;
  OptimizerSettings settings;
  uint64_t update = 1;    // number of this update of the tensor, from 1
  bool has_first = true;  // the first moment holds what earlier updates left
  RandomStream random;
};

void UpdateTensor(const UpdateRun& run, const TensorStep& step, TensorState& state);

}  // namespace dlsim::sim
