// SPDX-License-Identifier: Apache-2.0
// Searches the scale window of each step: the powers of two at which every gradient stays finite
// and harm stays below a threshold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/gradient_source.h"
#include "sim/replay/harm.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// What the loss scale does not change of a measured step.
struct StepInputs {
  StepInputs(const GradientStep& opened, const StepMeasurement& step,
             const std::vector<TensorAnswer>& any_answers, NoiseFinder& noise_finder);

  const std::vector<StepTensor>& tensors;
  const std::vector<ChannelCurves>& channels;
  std::vector<TensorStats> totals;  // only what is counted of the inputs counts
  std::vector<bool> noise;          // see NoiseFinder
  bool parameters_only = false;     // no activation gradient was recorded that is not zero
};

// The binades that a recommended scale leaves below overflow.
inline constexpr int kHeadroom = 2;

// Searches the window of one format, step by step: it hardly moves from one to the next.
class WindowSearch {
 public:
  // `checked`: the gradients that decide whether a step is finite.
  WindowSearch(NamedFormat format, const Conversion& conversion, Checked checked);

  const NamedFormat& format() const { return format_; }
  const std::vector<StepWindow>& windows() const { return windows_; }

  // Begins a step.
  void Begin(int64_t step);

  // Returns the scales, as exponents, at which to measure next: at first those at which the step
  // before had its lower end, none if there was none; then none once the window is found.
  std::vector<int> Wanted() const;
  StepQuestion QuestionAt(int exponent) const;

  // Takes over what was measured at a scale; after Begin once at least, at whatever scale.
  void Learn(int exponent, const StepInputs& inputs, const std::vector<TensorAnswer>& answers);

  // Ends a step whose window is found.
  void End(const StepInputs& inputs);

 private:
  // What is known of harm at a scale.
  struct HarmAtScale {
    bool passes[3] = {};  // by Reading
    double mean = 0;      // the likely one
    std::string worst_tensor;
  };
  // From the largest scale that is known to fail to the smallest that is known to do.
  struct Ends {
    int fails, passes;
  };
  Ends EndsOf(Reading reading) const;
  void FindHigh(const StepInputs& inputs);
  void FindChannelLow(const StepInputs& inputs);
  HarmOverTensors ChannelHarmAt(const StepInputs& inputs, Role role, int exponent) const;
  bool KeepsChannels(const StepInputs& inputs, int exponent) const;
  void EndByChannels(const StepInputs& inputs);
  double Expected(const StepInputs& inputs, int exponent) const;
  int PredictLow(const StepInputs& inputs) const;
  std::vector<float> HarmBelow(const StepInputs& inputs, double measured) const;

  NamedFormat format_;
  Conversion conversion_;
  Checked checked_;
  std::optional<int> guess_;  // of the lower end
  bool found_high_ = false;
  int channel_low_ = kLowestWindowExponent;  // of the step, where no channel loses too much
  StepWindow current_;
  std::map<int, HarmAtScale> known_;
  std::vector<StepWindow> windows_;
};

}  // namespace dlsim::sim
