// SPDX-License-Identifier: Apache-2.0
// What a replay reports about one tensor over all steps of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// What a tensor loses, or the mean over tensors, over steps.
struct HarmOverSteps {
  double sum = 0, worst = 0;
  uint64_t steps = 0;

  void Add(double harm) {
    sum += harm;
    worst = harm > worst ? harm : worst;
    ++steps;
  }
  double mean() const { return steps == 0 ? 0 : sum / static_cast<double>(steps); }
};

// What the channels of a tensor lose, over steps; see TensorTable::channels.
struct ChannelHarm {
  uint64_t channels = 0;    // the most channels that are not zero at one step; 0 = not known
  HarmOverSteps mean = {};  // over the channels
  double worst = 0;         // of a channel at a step
};

// The loss scales that were used.
struct ScaleRange {
  double min = 0, max = 0, final = 0;
};

// One tensor over all steps of a run.
struct ReplayTensor {
  std::string name;
  Role role = Role::kGrad;
  TensorStats stats = {};
  // Largest energy lost in one applied step: over a run the largest step would hide the others.
  double worst_step_energy_lost = 0;
  HarmOverSteps harm = {};     // over the applied steps in which it is not zero
  ChannelHarm channels = {};   // over the same, as far as they are known
  uint64_t nonzero_steps = 0;  // those, and the skipped ones ...
  uint64_t noise_steps = 0;    // ... and of all these where it is but rounding noise of float32

  bool noise() const { return 2 * noise_steps > nonzero_steps; }
  std::optional<int64_t> first_overflow_step = std::nullopt;
  std::optional<ScaleRange> scales = std::nullopt;  // if its scale is not the model's
};

// The forward pass of a run at scale 1: no loss scale moves it, and all steps count, those too that
// are skipped later. Its tensors are kept apart from gradients, so that nothing sums them together;
// they have no harm, no noise and no scales.
struct ForwardPass {
  TensorStats outputs, values;        // of the roles act and value
  std::vector<ReplayTensor> tensors;  // in file order of their first appearance
};

}  // namespace dlsim::sim
