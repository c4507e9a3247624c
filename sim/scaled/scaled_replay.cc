// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/scaled.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/scaled_codec.h"
#include "sim/base/named_list.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// Products of matrices convert outputs of modules, parameters and gradients of outputs. Results of
// operations inside modules, what autocast keeps in float32 and gradients of parameters stay.
bool IsJudged(const TensorInfo& tensor, const std::set<std::string>& float32) {
  if (tensor.role == Role::kGrad || tensor.shape.size() < 2 || IsOfOperation(tensor.name)) {
    return false;
  }
  return !float32.contains(std::string(OutputOf(tensor.name)));
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

// What is found in one format.
struct OfFormat {
  std::map<std::string, DelayedScale> delayed;  // by tensor
  NamedList<ScaledTensor> tensors;
  std::vector<ScaledStep> steps;
};

void AddTensor(const TensorInfo& header, bool judged, const ScaledLoss& loss, size_t place,
               OfFormat& format) {
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

void AddStep(const Step& step, std::span<const NamedScaledFormat> formats,
             const ScaledObserver& observer, std::vector<OfFormat>& of_formats) {
  const std::set<std::string> float32 = step.Listed(kAutocastFloat32Key);
  const auto scale = [&](size_t f, const std::string& tensor) -> std::optional<float> {
    if (!formats[f].format.delayed) return std::nullopt;
    const auto delayed = of_formats[f].delayed.find(tensor);
    return delayed == of_formats[f].delayed.end() ? 1 : delayed->second.scale();
  };
  const std::vector<std::vector<ScaledLoss>> losses = step.MeasureScaled(formats, scale);
  const TensorSpan tensors = {step.tables().tensors, {}};
  for (size_t f = 0; f < formats.size(); ++f) {
    const ScaledFormat& format = formats[f].format;
    OfFormat& of = of_formats[f];
    of.steps.push_back({.step = step.number(), .forward = {}, .backward = {}});
    for (size_t t = 0; t < tensors.size(); ++t) {
      const ScaledLoss& loss = losses[f][t];
      const bool judged = IsJudged(tensors[t], float32);
      AddTensor(tensors[t], judged, loss, t, of);
      if (observer) observer({formats[f].name, step.number(), tensors[t], judged, loss.by_axis});
      if (!format.delayed) continue;
      of.delayed.try_emplace(tensors[t].name, format, ElementOf(format, tensors[t].role))
          .first->second.Advance(LargestOf(loss.by_axis[0].stats));
    }
    TakeMean(of.steps.back().forward);
    TakeMean(of.steps.back().backward);
  }
}

bool TooMany(size_t failures, size_t steps) {
  return failures > MostLost(steps) || (steps == 1 && failures == 1);
}

}  // namespace

DelayedScale::DelayedScale(const ScaledFormat& format, const Format& element)
    : format_(format), element_(element), history_(format.delayed->history) {}

void DelayedScale::Advance(float largest) {
  history_.front() = largest;
  const bool newest = format_.delayed->decides == FromHistory::kMostRecent;
  const float decides = newest ? largest : *std::ranges::max_element(history_);
  if (decides > 0 && std::isfinite(decides)) scale_ = ScaleFor(format_, element_, decides);
  std::rotate(history_.begin(), history_.begin() + 1, history_.end());
  history_.front() = 0;
}

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

std::vector<ScaledAdvice> ReplayScaled(const StepSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const std::function<void(size_t)>& done,
                                       const ScaledObserver& observer) {
  RequireAnswers(source.facts, formats);
  // Steps without values hold what is lost in formats whose scales follow from the step.
  std::vector<NamedScaledFormat> held(formats.begin(), formats.end());
  std::erase_if(held, [](const NamedScaledFormat& one) { return one.format.delayed.has_value(); });
  StepOptions options;
  options.scaled = held;
  std::vector<OfFormat> of_formats(formats.size());
  for (size_t i = 0; i < source.step_count; ++i) {
    std::unique_ptr<Step> step = source.describe(i);
    if (step->recorded() == nullptr) step = source.load(i, options);
    AddStep(*step, formats, observer, of_formats);
    if (done) done(i + 1);
  }
  std::vector<ScaledAdvice> advice;
  for (size_t f = 0; f < formats.size(); ++f) {
    ScaledAdvice& of = advice.emplace_back();
    of.format = formats[f].name;
    of.row = formats[f].format;
    of.steps = std::move(of_formats[f].steps);
    of.tensors = of_formats[f].tensors.Take();
    for (const ScaledTensor& tensor : of.tensors) {
      if (tensor.judged && tensor.harm.steps > 0) of.looked_at.insert(tensor.role);
    }
  }
  return advice;
}

}  // namespace dlsim::sim
