// SPDX-License-Identifier: Apache-2.0
// The finite tests: whether a measured step is finite, and why not. Up to which loss scale a
// gradient fits a format, and up to which gradient a loss scale does.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dlsim/codec.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// A float32 sum overflows when the exact one rounds past float32's largest value. The order in
// which a stack adds is not known: this is the outcome without its intermediate roundings.
inline constexpr double kFloat32Overflow = 0x1p128 - 0x1p103;

// What the finite tests look at, over some tensors of one step, and what explains their outcome.
struct FiniteFindings {
  double sum_of_squares = 0;  // of the unscaled gradients; as recorded where that decides alike
  double scaled_sum_of_squares = 0;              // of the still scaled; 0 if it was not asked for
  bool nonfinite_element = false;                // among the quantised, still scaled gradients
  bool nonfinite_scaled_sum = false;             // only their float32 sum over micro-steps
  bool nonfinite_sum = false;                    // only that sum after unscaling
  bool nonfinite_unscaled = false;               // only unscaling overflows
  const std::string* sum_tensor = nullptr;       // first whose float32 sum overflows
  const std::string* input_tensor = nullptr;     // first with a non-finite input
  const std::string* overflow_tensor = nullptr;  // the one that overflows farthest
  const std::string* largest_tensor = nullptr;   // the largest part of the norm
};

// Looks at some gradients, given by their index in ascending order.
FiniteFindings Judge(TensorSpan tensors, const StepAnswer& answer, std::span<const size_t> checked);

// Applies a finite test.
bool IsFinite(FiniteTest test, const FiniteFindings& findings);

// Fills in why a step is not finite: cause, tensor to blame, whether a lower scale helps.
void Explain(FiniteTest test, const FiniteFindings& findings, ReplayStep& record);

// Returns whether the test needs StepQuestion::detail: only where finite elements of the format can
// have a float32 sum or sum of squares that is not.
bool NeedsDetail(FiniteTest test, const Format& format);

// What becomes of a magnitude, of either sign: directed rounding treats them differently.
struct ScaledMagnitude {
  // Becomes infinite, in float32 or in the format, or is clamped: by saturation, or by a rounding
  // mode that stops at the largest finite value, where that is more than rounding.
  bool overflows = false;
  bool nonfinite = false;  // is infinite or NaN in the format
};
ScaledMagnitude ScaleMagnitude(const Conversion& conversion, float magnitude, float scale);

// Returns the largest float32 scale at which no magnitude up to `magnitude` overflows, or becomes
// infinite or NaN in the format; 0 if none is known, since the smallest subnormal one does.
float LargestScale(const Conversion& conversion, float magnitude);
float LargestFiniteScale(const Conversion& conversion, float magnitude);

// Returns the largest float32 magnitude that does not overflow at this scale.
float LargestMagnitude(const Conversion& conversion, float scale);

}  // namespace dlsim::sim
