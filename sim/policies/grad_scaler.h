// SPDX-License-Identifier: Apache-2.0
// What the policies share whose originals are torch's GradScaler or extend it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dlsim/sim/policies.h"

namespace dlsim::sim {

enum class TorchGrowth : uint8_t { kAlways, kIfFinite };

struct TorchConfig {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int32_t growth_interval = 2000;  // the kernel's own type
  TorchGrowth growth = TorchGrowth::kIfFinite;
};

struct TorchState {
  float scale = 0;
  int32_t growth_tracker = 0;
};

inline TorchState StartAsTorch(const TorchConfig& config) {
  return {static_cast<float>(config.init_scale), 0};
}

// GradScaler's step() and update(), in torch.cc.
Transition<TorchState> UpdateAsTorch(const TorchConfig& config, const TorchState& state,
                                     const ScalerInput& input);

// The first call of scale() makes a float32 tensor, which takes no larger number.
inline void CheckFirstScale(double init_scale, const std::vector<NamedValue>& parameters) {
  if (std::fabs(init_scale) <= std::numeric_limits<float>::max()) return;
  throw PolicyRefusal{"RuntimeError", "value cannot be converted to type float without overflow",
                      parameters};
}

// The assertions of GradScaler's constructor.
inline void CheckFactors(double growth_factor, double backoff_factor,
                         const std::vector<NamedValue>& parameters) {
  if (!(growth_factor > 1.0)) {
    throw PolicyRefusal{"AssertionError", "The growth factor must be > 1.0.", parameters};
  }
  if (!(backoff_factor < 1.0)) {
    throw PolicyRefusal{"AssertionError", "The backoff factor must be < 1.0.", parameters};
  }
}

// Adds notes on an interval that the kernel's int cannot hold or never reaches.
inline void NoteKernelInterval(const std::string& name, int64_t asked, int32_t interval,
                               std::vector<std::string>& notes) {
  if (interval != asked) {
    notes.push_back(name + " " + std::to_string(asked) +
                    " does not fit the kernel's int and acts as " + std::to_string(interval));
  }
  if (interval < 1) notes.push_back(name + " below 1: the scale never grows");
}

}  // namespace dlsim::sim
