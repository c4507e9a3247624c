// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "sim/advice/advice_text.h"

namespace dlsim::sim {
namespace {

// So many steps may be lost: training goes on over a spike, and is not set up for it.
size_t MostLost(size_t steps) { return std::max<size_t>(1, steps / 20); }

// The step whose window ends first on one side, of those that hold the scale.
WindowBound BoundOf(const FormatWindows& windows, const ServedSteps::Range& range, bool low) {
  WindowBound bound;
  for (const StepWindow& step : windows.steps) {
    if (!step.Has(range.low)) continue;
    const bool decides = low ? step.low == range.low : step.high == range.high;
    const std::string& tensor = low ? step.low_tensor : step.high_tensor;
    if (decides && !tensor.empty()) return {step.step, tensor};
  }
  return bound;
}

Bracket<int> LowRange(const FormatWindows& windows, const ServedSteps::Range& range) {
  Bracket<int> widest = {kLowestWindowExponent, kLowestWindowExponent};
  for (const StepWindow& step : windows.steps) {
    if (step.Has(range.low)) widest.RaiseTo(step.low_range);
  }
  return widest;
}

void AddTensors(const FormatWindows& windows, FormatAdvice& advice) {
  HarmOverSteps all;
  for (const TensorHarm& tensor : windows.tensors) {
    if (tensor.noise()) {
      advice.noise_tensors.push_back(tensor.name);
      continue;
    }
    advice.tensors.push_back(tensor);
    if (tensor.harm.steps > 0) all.Add(tensor.harm.mean());
    if (tensor.first_step) advice.at_risk.push_back(tensor);
  }
  advice.mean_harm = all.mean();
  std::ranges::stable_sort(advice.at_risk, std::greater(),
                           [](const TensorHarm& tensor) { return tensor.harm.mean(); });
}

FormatAdvice AdviseOnFormat(const FormatWindows& windows) {
  FormatAdvice advice;
  advice.format = windows.format.name;
  advice.steps = windows.steps.size();
  for (const StepWindow& step : windows.steps) {
    advice.hopeless_steps += step.hopeless;
    advice.empty_steps += step.empty() && !step.hopeless;
    advice.zero_steps += step.largest == 0 && !step.hopeless;
  }
  const std::optional<ServedSteps::Range> range = windows.served.Best();
  advice.steps_outside = advice.steps - (range ? range->served : 0);
  advice.most_served = range;
  const size_t judged = advice.steps - advice.hopeless_steps;
  const bool told = 2 * (judged - advice.zero_steps) >= advice.steps;
  if (!told || !range) {
    advice.verdict = told ? FormatVerdict::kNoScaleServes : FormatVerdict::kOverflows;
  } else if (judged - range->served <= MostLost(judged)) {
    advice.window = range;
    advice.verdict = range->exponent == 0 ? FormatVerdict::kAsIs : FormatVerdict::kWithScale;
    advice.scale = std::ldexp(1.0, range->exponent);
    advice.low = BoundOf(windows, *range, true);
    advice.high = BoundOf(windows, *range, false);
    const Bracket<int> low_range = LowRange(windows, *range);
    if (!low_range.exact()) advice.low_range = low_range;
  } else if (advice.empty_steps > MostLost(judged)) {
    advice.verdict = FormatVerdict::kNoScaleServes;
  } else {
    advice.verdict = FormatVerdict::kWithScale;  // one that moves
  }
  AddTensors(windows, advice);
  advice.windows = windows.steps;
  return advice;
}

}  // namespace

bool HasRangeOfFloat32(const Format& format) { return format.exponent_bits >= 8; }

PathPlace PlaceOf(const ReplayStep& step, const StepWindow& window) {
  if (window.empty()) return PathPlace::kUnserved;
  if (step.scale < std::ldexp(1.0, window.low)) return PathPlace::kBelow;
  if (step.scale <= std::ldexp(1.0, window.high)) return PathPlace::kInside;
  // Below the next power of two it is not known to overflow.
  const bool known = step.scale >= std::ldexp(2.0, window.high);
  return step.finite && !known ? PathPlace::kInside : PathPlace::kAbove;
}

PathInWindows CompareWithWindows(std::span<const ReplayStep> steps,
                                 std::span<const StepWindow> windows) {
  PathInWindows path;
  size_t* const counts[] = {&path.inside, &path.below, &path.above, &path.unserved};
  for (size_t i = 0; i < std::min(steps.size(), windows.size()); ++i) {
    ++*counts[static_cast<size_t>(PlaceOf(steps[i], windows[i]))];
  }
  return path;
}

Advice AdviseOn(const GradientSource& source, std::span<const std::string> formats,
                const Conversion& conversion, const StepOptions& options,
                const std::function<void(size_t)>& progress, const std::string& tensors) {
  class Counter final : public StepConsumer {
   public:
    explicit Counter(const std::function<void(size_t)>& told) : told_(told) {}
    void Advance(size_t i, const GradientStep&, const StepMeasurement&) override {
      if (told_) told_(i + 1);
    }

   private:
    const std::function<void(size_t)>& told_;
  };
  WindowConsumer windows(NamedFormats(formats), conversion, options);
  windows.FindNoise(source);
  Counter counter(progress);
  ConsumerGroup group({&windows, &counter});
  ForEachStep(source, options, group);
  return Advise(windows.Take(source), tensors);
}

Advice Advise(std::span<const FormatWindows> windows, const std::string& tensors) {
  Advice advice;
  advice.tensors = tensors;
  for (const FormatWindows& of_format : windows)
    advice.formats.push_back(AdviseOnFormat(of_format));
  const auto rank = [](const FormatAdvice& format) {
    return std::tuple(format.verdict, !format.scale, format.steps_outside, format.mean_harm);
  };
  for (size_t f = 1; f < advice.formats.size(); ++f) {
    if (rank(advice.formats[f]) < rank(advice.formats[advice.best])) advice.best = f;
  }
  for (const Role role : {Role::kGrad, Role::kActGrad}) {
    const bool present = std::ranges::any_of(
        windows.front().tensors,
        [&](const TensorHarm& tensor) { return tensor.role == role && tensor.harm.steps > 0; });
    if (present) advice.looked_at.push_back(role);
  }
  advice.parameters_only = std::ranges::count(advice.looked_at, Role::kActGrad) == 0;
  advice.broken_losses = windows.front().broken_losses;
  advice.lines = AdviceLines(advice);
  return advice;
}

}  // namespace dlsim::sim
