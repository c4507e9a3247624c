// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/scaled_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dlsim/error.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// Products of matrices convert outputs of modules, parameters and gradients of outputs. Results of
// operations inside modules, what autocast keeps in float32 and gradients of parameters stay.
bool IsJudged(const ProfileTensor& tensor, const std::set<std::string>& float32) {
  if (tensor.role == Role::kGrad || tensor.shape.size() < 2 || IsOfOperation(tensor.name)) {
    return false;
  }
  return !float32.contains(OutputOf(tensor.name));
}

// Of NaN none is taken.
float LargestOf(const TensorStats& stats) {
  return stats.inf > 0 ? std::numeric_limits<float>::infinity() : stats.absmax;
}

// Of the axis that loses more.
const ScaledStats& WorseAxis(const ScaledLoss& loss) {
  const bool second = loss.by_axis[1].stats.elements > 0 &&
                      loss.by_axis[1].stats.harm() > loss.by_axis[0].stats.harm();
  return loss.by_axis[second ? 1 : 0];
}

void AddHarm(const std::string& name, double harm, ScaledHarm& into) {
  ++into.tensors;
  into.mean += harm;  // the sum until all are there
  if (into.tensors == 1 || harm > into.worst) {
    into.worst = harm;
    into.worst_tensor = name;
  }
}

void TakeMean(ScaledHarm& harm) {
  if (harm.tensors > 0) harm.mean /= static_cast<double>(harm.tensors);
}

bool TooMany(size_t failures, size_t steps) {
  return failures > MostLost(steps) || (steps == 1 && failures == 1);
}

}  // namespace

size_t ScaledAdvice::ForwardFailures() const {
  return static_cast<size_t>(std::ranges::count_if(
      steps, [](const ScaledStep& step) { return step.forward.worst > kScaledForwardFails; }));
}

size_t ScaledAdvice::BackwardFailures(double limit) const {
  return static_cast<size_t>(std::ranges::count_if(
      steps, [&](const ScaledStep& step) { return step.backward.mean > limit; }));
}

bool ScaledAdvice::FailsInForward() const { return TooMany(ForwardFailures(), steps.size()); }
bool ScaledAdvice::FailsInBackward(double limit) const {
  return TooMany(BackwardFailures(limit), steps.size());
}

ScaledReplay::ScaledReplay(std::span<const NamedScaledFormat> formats, ScaledObserver observer)
    : formats_(formats.begin(), formats.end()),
      observer_(std::move(observer)),
      of_(formats.size()) {}

void ScaledReplay::AddTensor(const ProfileTensor& header, bool judged, const ScaledLoss& loss,
                             size_t place, OfFormat& format) {
  ScaledTensor& tensor = format.tensors.Of(header.name, place, header.role, judged);
  ScaledStep& step = format.steps.back();
  const ScaledStats& worse = WorseAxis(loss);
  for (size_t axis = 0; axis < 2; ++axis) tensor.by_axis[axis].Merge(loss.by_axis[axis].stats);
  const bool first = tensor.scales.max == 0;
  tensor.scales.min =
      first ? worse.min_scale : std::min<double>(tensor.scales.min, worse.min_scale);
  tensor.scales.max = std::max<double>(tensor.scales.max, worse.max_scale);
  tensor.scales.final = worse.min_scale;
  const uint64_t clipped = std::max(loss.by_axis[0].stats.overflow, loss.by_axis[1].stats.overflow);
  if (clipped > 0) {
    ++tensor.clipped_steps;
    if (!tensor.first_clipped_step) tensor.first_clipped_step = step.step;
  }
  if (worse.stats.sum_of_squares == 0) return;
  const double harm = worse.stats.harm();
  tensor.harm.Add(harm);
  tensor.channel_harm.Add(worse.mean_channel_harm);
  tensor.worst_channel_harm = std::max(tensor.worst_channel_harm, worse.worst_channel_harm);
  if (!judged) return;
  step.clipped += clipped;
  AddHarm(tensor.name, harm, IsForward(tensor.role) ? step.forward : step.backward);
}

void ScaledReplay::Add(const GradientStep& step) {
  const std::set<std::string> float32 = step.Listed(kAutocastFloat32Key);
  const auto scale = [&](size_t f, const std::string& tensor) -> std::optional<float> {
    if (!formats_[f].format.delayed) return std::nullopt;
    const auto delayed = of_[f].delayed.find(tensor);
    return delayed == of_[f].delayed.end() ? 1 : delayed->second.scale();
  };
  const ScaledTensors found = step.MeasureScaled(formats_, scale);
  for (size_t f = 0; f < formats_.size(); ++f) {
    OfFormat& of = of_[f];
    of.steps.push_back({.step = step.number(), .forward = {}, .backward = {}});
    for (size_t t = 0; t < found.tensors.size(); ++t) {
      const ProfileTensor& tensor = found.tensors[t];
      const ScaledLoss& loss = found.losses[f][t];
      const bool judged = IsJudged(tensor, float32);
      AddTensor(tensor, judged, loss, t, of);
      if (observer_) observer_({formats_[f].name, step.number(), tensor, judged, loss.by_axis});
      if (!formats_[f].format.delayed) continue;
      of.delayed
          .try_emplace(tensor.name, formats_[f].format, ElementOf(formats_[f].format, tensor.role))
          .first->second.Advance(LargestOf(loss.by_axis[0].stats));
    }
    TakeMean(of.steps.back().forward);
    TakeMean(of.steps.back().backward);
  }
}

std::vector<ScaledAdvice> ScaledReplay::Take() {
  std::vector<ScaledAdvice> advice;
  for (size_t f = 0; f < formats_.size(); ++f) {
    ScaledAdvice& of = advice.emplace_back();
    of.format = formats_[f].name;
    of.row = formats_[f].format;
    of.steps = std::move(of_[f].steps);
    of.tensors = of_[f].tensors.Take();
    for (const ScaledTensor& tensor : of.tensors) {
      if (tensor.judged && tensor.harm.steps > 0) of.looked_at.insert(tensor.role);
    }
  }
  return advice;
}

bool Answers(const SourceFacts& facts, const ScaledFormat& format) {
  if (!facts.profile) return true;
  return std::ranges::count(facts.profile->settings.scaled, format, &NamedScaledFormat::format) > 0;
}

void RequireAnswers(const SourceFacts& facts, std::span<const NamedScaledFormat> formats) {
  for (const NamedScaledFormat& format : formats) {
    if (Answers(facts, format.format)) continue;
    std::string held;
    for (const NamedScaledFormat& one : facts.profile->settings.scaled) held += one.name + ", ";
    throw InputError("--format", "the profile does not hold " + format.name,
                     held.empty() ? "a trace" : held + "or a trace");
  }
}

std::vector<ScaledAdvice> ReplayScaled(const GradientSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const std::function<void(size_t)>& done,
                                       const ScaledObserver& observer) {
  RequireAnswers(source.facts(), formats);
  ScaledReplay replay(formats, observer);
  for (size_t i = 0; i < source.step_count(); ++i) {
    replay.Add(*source.Load(i, StepNeeds::kTensors));
    if (done) done(i + 1);
  }
  return replay.Take();
}

}  // namespace dlsim::sim
