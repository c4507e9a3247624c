// SPDX-License-Identifier: Apache-2.0
// The scale window of each step: the powers of two at which every gradient stays finite and harm
// stays below a threshold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/sim/gradient_source.h"
#include "sim/replay/harm.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// Powers of two that float32 holds with their reciprocals.
inline constexpr int kLowestWindowExponent = -126, kHighestWindowExponent = 126;

// The mean harm over tensors from which on training suffers, above the format's rounding floor:
// docs/evidence.md has where they come from. Backward passes the gradients of activations through
// the format, and they decide; those of parameters sum over batch and tokens and lose less at the
// same scale, so that they need a smaller threshold where they are all that was recorded.
inline constexpr double kHarmThreshold = 0.013, kParametersOnlyHarmThreshold = 0.0007;

// The window of one step for one format: exponents of two from `low` to `high`; empty if low is the
// larger. Of a profile the likeliest one, and how far its lower end may be off.
struct StepWindow {
  int64_t step = 0;
  bool hopeless = false;  // not finite at any scale: a recorded gradient is not, or is too large
  int low = kLowestWindowExponent, high = kHighestWindowExponent;
  Bracket<int> low_range = {kLowestWindowExponent, kLowestWindowExponent};
  std::string low_tensor, high_tensor;  // that bound it; empty if nothing does

  bool empty() const { return hopeless || low > high; }
  bool Has(int exponent) const { return !hopeless && low <= exponent && exponent <= high; }
};

// What a format's search knows of harm at a scale.
struct HarmAtScale {
  bool passes[3] = {};  // by HarmReading
  std::string worst_tensor;
};

// Searches the window of one format, step by step: it hardly moves from one to the next.
class WindowSearch {
 public:
  WindowSearch(NamedFormat format, const Conversion& conversion);

  const NamedFormat& format() const { return format_; }
  const std::vector<StepWindow>& windows() const { return windows_; }

  // Begins a step.
  void Begin(int64_t step);

  // Returns the scales, as exponents, at which to measure next; none once the window is found.
  std::vector<int> Wanted() const;
  StepQuestion QuestionAt(int exponent) const;

  // Takes over what was measured at a scale.
  void Learn(int exponent, const StepMeasurement& step, const std::vector<TensorAnswer>& answers);

  // Ends a step whose window is found.
  void End();

 private:
  // From the largest scale that is known to fail to the smallest that is known to do.
  struct Ends {
    int fails, passes;
  };
  Ends EndsOf(HarmReading reading) const;
  void FindHigh(const std::vector<StepTensor>& tensors, const std::vector<TensorStats>& totals);
  bool StaysFinite(float value, int exponent) const;

  NamedFormat format_;
  Conversion conversion_;
  double floor_;
  int guess_ = 0;
  bool found_high_ = false;
  StepWindow current_;
  std::map<int, HarmAtScale> known_;
  std::vector<StepWindow> windows_;
};

}  // namespace dlsim::sim
