// SPDX-License-Identifier: Apache-2.0
// What the steps say of a format. The loss scales that are safe for each: powers of two at which
// every gradient stays finite and harm stays below a threshold; with them what each gradient loses
// at the scale that is safe at most steps. And whether forward tensors fit, by what is gathered
// step by step and by what the recorder has found by running steps again in formats.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/format.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"
#include "sim/base/named_list.h"
#include "sim/replay/harm.h"

namespace dlsim::sim {

// Returns how many binades lie between a magnitude and the largest finite value of the format:
// negative if the magnitude overflows, not negative if it fits, infinite for 0.
double ForwardHeadroom(const Conversion& conversion, float absmax);

// Forward tensors of a step: those that autocast keeps in float32, and those that may vanish.
struct ListedTensors {
  std::set<std::string> float32, slight;
};

// Returns those of a step; `inputs` are of its gradients, see Step::Inputs.
ListedTensors ListedIn(const Step& step, std::span<const TensorStats> inputs);

// The forward tensors of one conversion.
class ForwardTally {
 public:
  ForwardTally(const Conversion& conversion, Recipe recipe);

  // Takes over a step, its forward tensors at scale 1.
  void Add(const Step& step, const ListedTensors& listed);

  // Returns what is to be said of Role::kAct or of Role::kValue.
  ForwardVerdict VerdictOn(Role role) const;

 private:
  struct OfRole {
    NamedList<ForwardTensor> tensors;
    std::set<std::string> kept_in_float32;
    size_t steps = 0;
  };

  void CountLargest(const Step& step, size_t place, const TensorStats& total,
                    ForwardTensor& tensor) const;

  Conversion conversion_;
  Recipe recipe_;
  float largest_that_fits_;
  OfRole outputs_, values_;
};

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

  Counts safe_ = {}, with_room_ = {};
};

// What the steps of a source say of formats.
class WindowFinder {
 public:
  // Looks all over the run for tensors that hold nothing but rounding noise. The source must live
  // as long. Throws Error for unknown names.
  WindowFinder(const StepSource& source, AdviceRequest request, const ReplayOptions& options);

  // Takes effective step i; the steps come in order.
  void Take(size_t i, const Step& step);

  // The window of the latest step, for the format at this place among the distinct ones.
  const StepWindow& Latest(size_t format) const { return formats_[format].found.windows.back(); }

  // Returns the verdict; once, after the last step. First steps whose tensors were not looked at at
  // the scale that came out in the end are gone through again, and all for each plan of the
  // recorder's, unless what to change is left out. Formats are ranked: one that needs no scale
  // first, then those with a scale, by the steps at which it is not safe and what the tensors lose.
  Advice Conclude(bool with_changes = true);

 private:
  struct OfFormat {
    FormatAdvice found;
    Conversion conversion;
    ForwardTally forward;
    SafeStepCounts safe_steps = {};
    int exponent = 0;                      // at which the tensors' harm is measured ...
    size_t first = 0;                      // ... from this step on
    std::vector<TensorHarm> tensors = {};  // by place; see NoiseFinder
    // Where the search begins: the lower ends of the step before.
    int low = 0, channel_low = 0;
  };

  // Measures tensors at the scale that is safest by now, from a step on if it is another one.
  static void Aim(size_t step, OfFormat& of);

  void ReadShadows();
  Advice TakeWindows();

  const StepSource& source_;
  AdviceRequest request_;
  ReplayOptions options_;  // without observer
  NoiseFinder noise_;
  Advice found_;        // of the whole
  std::string shadow_;  // what the last step says that says anything
  std::vector<OfFormat> formats_;
};

}  // namespace dlsim::sim
