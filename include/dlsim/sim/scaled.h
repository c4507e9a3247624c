// SPDX-License-Identifier: Apache-2.0
// What a recorded training loses in formats with scales of their own, in which no loss scale is
// needed: see scaled_format.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "dlsim/sim/replay_tensor.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// One tensor over the steps. Each step is measured with blocks along rows and along columns, as
// products of matrices need both, unless the whole tensor has one scale or its blocks are squares.
struct ScaledTensor {
  std::string name;
  Role role = Role::kGrad;
  bool judged = false;  // a matrix that such a training converts
  std::array<TensorStats, 2> by_axis =
      {};                           // along rows, or the only ones; along columns, may be empty
  HarmOverSteps harm = {};          // of the axis that loses more, where it is not zero
  HarmOverSteps channel_harm = {};  // the same averaged over its channels
  double worst_channel_harm = 0;
  uint64_t clipped_steps = 0;  // with elements beyond the largest of the format
  std::optional<int64_t> first_clipped_step = {};
  ScaleRange scales = {};  // by which values were multiplied; `final` is the least of the last step
};

// The judged tensors of one side at a step, each at its larger harm; those of zeros do not count.
struct ScaledHarm {
  double mean = 0, worst = 0;
  size_t tensors = 0;
  std::string worst_tensor;
};

struct ScaledStep {
  int64_t step = 0;
  ScaledHarm forward, backward;
  uint64_t clipped = 0;  // elements of judged tensors
};

// An output or a parameter that loses more of its energy at a step fails it.
inline constexpr double kScaledForwardFails = 0.5;
// Gradients of activations that lose more on average, rounding included, fail a step, or make it
// worse: trainings with gradients above the second ended with a larger loss than in float32
// (docs/scaled-formats.md).
inline constexpr double kScaledBackwardFails = 0.1, kScaledBackwardWorse = 0.006;

// What is said of a scaled format.
struct ScaledAdvice {
  std::string format;
  ScaledFormat row = {};
  std::vector<ScaledStep> steps;
  std::vector<ScaledTensor> tensors;  // in file order of their first appearance
  std::set<Role> looked_at;           // of judged tensors

  // Steps that fail on a side, or lose more in backward than the limit.
  size_t ForwardFailures() const;
  size_t BackwardFailures(double limit = kScaledBackwardFails) const;
  // Whether more steps do so than a training survives: one in twenty, and one in any.
  bool FailsInForward() const;
  bool FailsInBackward(double limit = kScaledBackwardFails) const;
};

}  // namespace dlsim::sim
