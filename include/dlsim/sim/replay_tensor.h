// SPDX-License-Identifier: Apache-2.0
// What a replay reports about one tensor over all steps of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/channels.h"
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

// What the channels of a tensor lose, over steps; see ChannelCurves.
struct ChannelHarm {
  uint64_t channels = 0;    // the most channels that are not zero at one step; 0 = not known
  HarmOverSteps mean = {};  // over the channels
  double worst = 0;         // of a channel at a step

  // Adds a step of a tensor that is not zero. `log_quantum`: nothing if the conversion's is not
  // known, or the step was skipped; then only channels are counted. Returns the mean.
  // `of_tensor`: its harm as a whole above the rounding floor, which is that of its only channel.
  double Add(const ChannelCurves& curves, std::optional<double> log_quantum, double of_tensor) {
    channels = curves.channels > channels ? curves.channels : channels;
    if (!log_quantum || !curves.known()) return 0;
    const bool one = curves.channels == 1;
    const double of_step = one ? of_tensor : curves.MeanAt(*log_quantum);
    const double largest = one ? of_tensor : curves.WorstAt(*log_quantum);
    mean.Add(of_step);
    worst = largest > worst ? largest : worst;
    return of_step;
  }
};

// The loss scales that were used.
struct ScaleRange {
  double min = 0, max = 0, final = 0;
};

struct TensorUncertainty {
  CounterBrackets stats;
  Bracket<double> worst_step_energy_lost;
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
  std::optional<ScaleRange> scales = std::nullopt;            // if its scale is not the model's
  std::optional<TensorUncertainty> uncertain = std::nullopt;  // from a profile

  // Adds what a profile leaves open of its counters at a step.
  void AddUncertainty(const CounterBrackets& counters) {
    if (!uncertain) uncertain.emplace();
    uncertain->stats.Merge(counters);
  }
};

// Counters of all tensors of a role, and what a profile leaves open of them.
struct ForwardSum {
  TensorStats stats;
  CounterBrackets open;
};

// The forward pass of a run at scale 1: no loss scale moves it, and all steps count, those too that
// are skipped later. Its tensors are kept apart from gradients, so that nothing sums them together;
// they have no harm, no noise and no scales.
struct ForwardPass {
  ForwardSum outputs, values;         // of the roles act and value
  std::vector<ReplayTensor> tensors;  // in file order of their first appearance
};

}  // namespace dlsim::sim
