// SPDX-License-Identifier: Apache-2.0
// One update of the followed elements of one tensor in one run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/philox.h"
#include "sim/updates/optimizers.h"
#include "sim/updates/update_run.h"

namespace dlsim::sim {

// What became of the changes that the optimizer computed for single weights.
struct UpdateCounts {
  uint64_t updates = 0;  // finite and not zero
  uint64_t lost = 0;     // of them, those that left the weight as it was
  uint64_t altered =
      0;  // the weight changed, but by less than half of it, or by more than 1.5 times

  void Count(double wanted, double moved);
};

// The elements of one tensor in one run.
struct TensorState {
  std::vector<UpdatedElement> elements;
  std::vector<float> compensation;  // of Kahan, else empty
  UpdateCounts counts;
};

// What all runs with the same settings are told.
struct TensorStep {
  std::span<const float> gradients;
  OptimizerSettings settings;
  uint64_t update = 1;    // number of this update of the tensor, from 1
  bool has_first = true;  // the first moment holds what earlier updates left
  RandomStream random;
};

void UpdateTensor(const UpdateRun& run, const TensorStep& step, TensorState& state);

// Returns the nearest value of a format.
float StoredIn(const StoredFormat& format, float value);

}  // namespace dlsim::sim
