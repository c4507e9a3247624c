// SPDX-License-Identifier: Apache-2.0
// Gradient clipping, as the stacks do it after (or, by mistake, before) unscaling.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "dlsim/enum_names.h"
#include "dlsim/gradient_detail.h"

namespace dlsim::sim {

// How the coefficient of clipping by norm is computed, in float32.
enum class ClipRule : uint8_t {
  kTorch,       // min(1, max_norm * (1 / (norm + 1e-6))); also DeepSpeed's
  kFairseq,     // max_norm / norm if the norm is above the limit, else 1
  kTensorFlow,  // max_norm * min(1 / norm, 1 / max_norm); NaN for a norm that is not finite
};

constexpr auto EnumNames(ClipRule) {
  return std::to_array<EnumName<ClipRule>>({{ClipRule::kTorch, "torch"},
                                            {ClipRule::kFairseq, "fairseq"},
                                            {ClipRule::kTensorFlow, "tf"}});
}

// At most one of the two limits is set.
struct Clipping {
  std::optional<double> max_norm;   // of the L2 norm over all parameter gradients
  std::optional<double> max_value;  // of each element's magnitude
  ClipRule rule = ClipRule::kTorch;
  ClipDomain domain = ClipDomain::kUnscaled;

  bool enabled() const { return max_norm || max_value; }
};

// Returns what the gradients are multiplied with. Sources: torch.nn.utils.clip_grad_norm_ (a number
// divided by a tensor is the number times the tensor's reciprocal), tf.clip_by_global_norm,
// FP16Optimizer of fairseq.
inline float ClipCoefficient(ClipRule rule, float max_norm, float norm) {
  if (rule == ClipRule::kTorch) {
    const float coefficient = max_norm * (1.0f / (norm + 1e-6f));
    return coefficient > 1.0f ? 1.0f : coefficient;  // keeps NaN, as torch.clamp does
  }
  if (rule == ClipRule::kFairseq) return norm > max_norm ? max_norm / norm : 1.0f;
  const float finite = max_norm * std::fmin(1.0f / norm, 1.0f / max_norm);
  return finite + (norm - norm);
}

// Returns whether a rule's coefficient changes gradients on purpose: TensorFlow's is often one
// rounding below 1 for norms within the limit.
inline bool Clips(ClipRule rule, float max_norm, float norm) {
  if (rule == ClipRule::kTensorFlow) return norm > max_norm;
  return ClipCoefficient(rule, max_norm, norm) < 1.0f;
}

}  // namespace dlsim::sim
