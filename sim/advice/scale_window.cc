// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/scale_window.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace dlsim::sim {
namespace {

constexpr HarmReading kReadings[] = {HarmReading::kLikely, HarmReading::kLow, HarmReading::kHigh};

size_t IndexOf(HarmReading reading) { return static_cast<size_t>(reading); }

}  // namespace

WindowSearch::WindowSearch(NamedFormat format, const Conversion& conversion)
    : format_(std::move(format)), conversion_(conversion) {
  conversion_.format = format_.format;
  floor_ = RoundingFloor(conversion_);
}

void WindowSearch::Begin(int64_t step) {
  current_ = {};
  current_.step = step;
  known_.clear();
  found_high_ = false;
}

StepQuestion WindowSearch::QuestionAt(int exponent) const {
  return {conversion_, std::ldexp(1.0f, exponent)};
}

bool WindowSearch::StaysFinite(float value, int exponent) const {
  const CodecSpec spec = MakeCodecSpec(conversion_);
  const float scaled = value * std::ldexp(1.0f, exponent);
  const EncodeResult result =
      Encode(spec, conversion_.rounding, std::bit_cast<uint32_t>(scaled), ~0u);
  const CodeClass output = Classify(spec, result.code);
  return std::isfinite(scaled) && !result.overflows && output != CodeClass::kInfinity &&
         output != CodeClass::kNan;
}

// Scaling and rounding are monotone: the largest magnitude of all overflows first.
void WindowSearch::FindHigh(const std::vector<StepTensor>& tensors,
                            const std::vector<TensorStats>& totals) {
  found_high_ = true;
  float largest = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (totals[t].nonfinite() > 0 && !current_.hopeless) {
      current_.hopeless = true;
      current_.high_tensor = tensors[t].name;
    }
    if (totals[t].absmax <= largest || current_.hopeless) continue;
    largest = totals[t].absmax;
    current_.high_tensor = tensors[t].name;
  }
  int below = kLowestWindowExponent - 1, beyond = kHighestWindowExponent + 1;
  while (beyond - below > 1) {
    const int middle = below + (beyond - below) / 2;
    (StaysFinite(largest, middle) ? below : beyond) = middle;
  }
  current_.high = below;
  if (below == kHighestWindowExponent && !current_.hopeless) current_.high_tensor.clear();
  current_.hopeless |= below < kLowestWindowExponent;
}

void WindowSearch::Learn(int exponent, const StepMeasurement& step,
                         const std::vector<TensorAnswer>& answers) {
  const std::vector<TensorStats> totals = TotalsOf(answers);
  if (!found_high_) FindHigh(step.tensors, totals);
  // What overflows is in no error.
  if (exponent > current_.high) return;
  const std::vector<bool> noise = FindNoise(step.tensors, totals);
  HarmAtScale& at = known_[exponent];
  for (const HarmReading reading : kReadings) {
    const HarmOverTensors grads =
        HarmOver(Role::kGrad, step.tensors, answers, totals, noise, reading);
    const HarmOverTensors activations =
        HarmOver(Role::kActGrad, step.tensors, answers, totals, noise, reading);
    const bool parameters_only = activations.tensors == 0;
    const double limit = floor_ + (parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold);
    at.passes[IndexOf(reading)] = grads.mean <= limit && activations.mean <= limit;
    if (reading != HarmReading::kLikely || grads.tensors + activations.tensors == 0) continue;
    const HarmOverTensors& worse = activations.mean > grads.mean ? activations : grads;
    at.worst_tensor = step.tensors[worse.worst_tensor].name;
  }
}

// A larger scale rounds to a finer grid, which holds the coarser one: harm only falls with the
// scale.
WindowSearch::Ends WindowSearch::EndsOf(HarmReading reading) const {
  Ends ends = {kLowestWindowExponent - 1, current_.high + 1};
  for (const auto& [exponent, at] : known_) {
    if (at.passes[IndexOf(reading)]) {
      ends.passes = std::min(ends.passes, exponent);
    } else {
      ends.fails = std::max(ends.fails, exponent);
    }
  }
  return ends;
}

std::vector<int> WindowSearch::Wanted() const {
  const auto within = [&](int exponent) {
    const int high = found_high_ ? current_.high : kHighestWindowExponent;
    return std::clamp(exponent, kLowestWindowExponent, std::max(high, kLowestWindowExponent));
  };
  if (!found_high_) {
    std::vector<int> wanted = {within(guess_ - 1), within(guess_)};
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    return wanted;
  }
  std::vector<int> wanted;
  if (current_.hopeless) return wanted;
  for (const HarmReading reading : kReadings) {
    const Ends ends = EndsOf(reading);
    if (ends.passes - ends.fails <= 1) continue;
    int next = known_.empty() ? current_.high : ends.fails + (ends.passes - ends.fails) / 2;
    // In steps that double as long as all that is known lies on one side.
    const int step = 1 << std::min<size_t>(known_.size(), 6);
    if (ends.fails < kLowestWindowExponent && !known_.empty()) next = ends.passes - step;
    if (ends.passes > current_.high && ends.fails >= kLowestWindowExponent)
      next = ends.fails + step;
    next = std::clamp(within(next), ends.fails + 1, ends.passes - 1);
    if (std::ranges::find(wanted, next) == wanted.end()) wanted.push_back(next);
  }
  return wanted;
}

void WindowSearch::End() {
  if (!current_.hopeless) {
    current_.low = EndsOf(HarmReading::kLikely).passes;
    current_.low_range = {EndsOf(HarmReading::kLow).passes, EndsOf(HarmReading::kHigh).passes};
    const auto below = known_.find(current_.low - 1);
    if (below != known_.end()) current_.low_tensor = below->second.worst_tensor;
    guess_ = current_.low;
  }
  windows_.push_back(std::move(current_));
}

}  // namespace dlsim::sim
