// SPDX-License-Identifier: Apache-2.0
// The loss scales that are safe for each step: powers of two at which every gradient stays finite
// and harm stays below a threshold. With them what each gradient loses at the scale that is safe at
// most steps, and whether the forward pass fits.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"
#include "sim/advice/forward_tally.h"
#include "sim/replay/harm.h"

namespace dlsim::sim {

// The binades that a recommended scale leaves below overflow.
inline constexpr int kHeadroom = 2;

// A tensor that loses more than this share of its own energy at some step is at risk.
inline constexpr double kHarmAtRisk = 0.1;

// At how many steps each power of two is safe.
class SafeStepCounts {
 public:
  void Add(const StepWindow& window);

  // Of the exponents that are safe at the most steps with head-room, the row that holds 0, else
  // the longest row. Empty if no scale is safe at any step.
  std::optional<SafeScales> Best() const;

 private:
  using Counts = std::array<size_t, kHighestWindowExponent - kLowestWindowExponent + 1>;

  size_t SafeAt(int exponent) const;
  SafeScales Around(int exponent) const;

  Counts safe_ = {}, with_room_ = {};
};

// Returns the formats of these names, each once.
std::vector<NamedFormat> NamedFormats(std::span<const std::string> names);

class WindowFinder {
 public:
  // Rounds as `conversion` says, to each format. `recipe` says which forward tensors count.
  WindowFinder(std::span<const NamedFormat> formats, const Conversion& conversion,
               const ReplayOptions& options, Recipe recipe = Recipe::kAutocast);

  // Looks all over the run for tensors that hold nothing but rounding noise; before the first step.
  void FindNoise(const StepSource& source) { noise_.Sample(source, options_); }

  // Takes effective step i; the steps come in order.
  void Take(size_t i, const Step& step);

  // The window of the latest step, for the format at this place.
  const StepWindow& Latest(size_t format) const { return formats_[format].found.windows.back(); }

  // Returns the windows of the formats in order, with what was looked at and no verdict; once,
  // after the last step. First steps whose tensors were not looked at at the scale that came out in
  // the end are gone through again.
  Advice TakeWindows(const StepSource& source);

 private:
  struct OfFormat {
    FormatAdvice found;
    Conversion conversion;
    ForwardTally forward;
    SafeStepCounts safe_steps = {};
    int exponent = 0;  // at which the tensors' harm is measured ...
    size_t first = 0;  // ... from this step on
    std::vector<TensorHarm> tensors = {};
    // Where the search begins: the lower ends of the step before.
    int low = 0, channel_low = 0;
  };

  // Measures tensors at the scale that is safest by now, from a step on if it is another one.
  static void Aim(size_t step, OfFormat& of);

  StepOptions options_;
  Checked checked_;
  NoiseFinder noise_;
  Advice found_;        // of the whole
  std::string shadow_;  // what the last step says that says anything
  std::vector<OfFormat> formats_;
};

}  // namespace dlsim::sim
