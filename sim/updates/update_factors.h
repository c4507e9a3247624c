// SPDX-License-Identifier: Apache-2.0
// The numbers that an optimizer multiplies and adds with in one update of all elements: float32;
// on a CPU, torch.optim rounds some of them to the format of the tensors.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "sim/updates/optimizer_settings.h"
#include "sim/updates/stored_format.h"

namespace dlsim::sim {

// Weight decay as a factor of weights; none if it is 1.
struct DecayFactor {
  float kept = 1;
  bool decays = false;
};

// What PyTorch's kernels of Adam multiply, divide and add in one operation.
enum class AdamKernel : uint8_t { kCpu, kCuda, kFusedCuda };

struct AdamFactors {
  AdamKernel kernel = AdamKernel::kCpu;
  DecayFactor weights;            // decoupled, or
  bool decays_gradients = false;  // added to the gradient, times
  float decay = 0;
  bool maximize = false, amsgrad = false;
  float beta1 = 0, grad_share = 0, beta2 = 0, square_share = 0;
  float step = 0, correction = 0, eps = 0;
};

struct SgdFactors {
  bool decays_gradients = false, maximize = false, nesterov = false;
  bool has_momentum = false;  // keeps a buffer, which holds what earlier updates left
  bool has_first = false;     // or nothing so far
  float decay = 0, momentum = 0, momentum_addend = 0, undamped = 0, step = 0;
};

struct LionFactors {
  DecayFactor weights;
  bool maximize = false;
  float beta1 = 0, grad_share1 = 0, beta2 = 0, grad_share2 = 0, step = 0;
};

struct AdafactorFactors {
  DecayFactor weights;
  bool maximize = false;
  float share = 0, floor = 0;
  float step = 0;             // see SetStep
  bool scales_first = false;  // foreach=True: the update times the step is stored, then added
};

using UpdateFactors = std::variant<AdamFactors, SgdFactors, LionFactors, AdafactorFactors>;

// `format`: of the tensors on which the optimizer computes. `update` counts from 1. `has_first`:
// the buffer of SGD's momentum holds what earlier updates left. `epsilon`: from 1 to the next value
// of the weights' format. `fused`: one kernel does the whole update.
struct UpdatePlace {
  StoredFormat format;
  uint64_t update = 1;
  bool has_first = false;
  double epsilon = 0;
  bool fused = false;
};
UpdateFactors MakeUpdateFactors(const OptimizerSettings& settings, const UpdatePlace& place);

// The step of Adafactor depends on all weights and on what it would add to them, before it: on
// their root mean squares.
float AdafactorStep(const OptimizerSettings& settings, const StoredFormat& format, uint64_t update,
                    std::span<const float> weights, std::span<const float> updates);

// By how much the optimizer wants to change a weight: weight * decay + step * factor, in float64;
// `step` is what a kernel leaves of each element.
struct WantedChange {
  bool decays = false;
  double decay = 0;
  double factor = 1;
};
WantedChange WantedBy(const UpdateFactors& factors);

}  // namespace dlsim::sim
