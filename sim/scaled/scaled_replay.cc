// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/scaled_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/tensor_values.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// As a matrix: an activation by its last axis, a parameter by its first.
std::pair<uint64_t, uint64_t> MatrixShape(Role role, const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t length : shape) elements *= length;
  if (shape.size() < 2 || elements == 0) return {elements == 0 ? 0 : 1, elements};
  const bool parameter = role == Role::kValue || role == Role::kGrad;
  const uint64_t columns = parameter ? elements / shape.front() : shape.back();
  return {elements / columns, columns};
}

// Products of matrices convert outputs of modules, parameters and gradients of outputs. Results of
// operations inside modules, what autocast keeps in float32 and gradients of parameters stay.
bool IsJudged(const TraceTensor& tensor, const std::set<std::string>& float32) {
  if (tensor.role == Role::kGrad || tensor.shape.size() < 2 || IsOfOperation(tensor.name)) {
    return false;
  }
  return !float32.contains(OutputOf(tensor.name));
}

const Format& ElementOf(Role role, const ScaledFormat& format) {
  return IsForward(role) ? format.forward : format.backward;
}

// The axes along which blocks lie in products of matrices.
std::vector<BlockAxis> AxesOf(Role role, const ScaledFormat& format) {
  if (format.sharing == Sharing::kTensor) return {BlockAxis::kRow};
  if (format.square_parameters && role == Role::kValue) return {BlockAxis::kBoth};
  return {BlockAxis::kRow, BlockAxis::kColumn};
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

// A recorded tensor.
struct ScaledReplay::Source {
  const Recording* recording;
  const TraceTensor* tensor;
  bool judged;
};

// What became of a tensor at a step.
struct ScaledReplay::Found {
  std::array<ScaledStats, 2> by_axis;
  double harm = 0, channel_harm = 0, worst_channel_harm = 0;  // of the axis that loses more
  float largest = 0;
};

ScaledReplay::ScaledReplay(std::span<const NamedScaledFormat> formats, ScaledObserver observer)
    : observer_(std::move(observer)) {
  for (const NamedScaledFormat& format : formats) formats_.push_back({format, {}, {}, {}});
}

ScaledReplay::Found ScaledReplay::Convert(const Source& source, const OfFormat& of,
                                          std::span<const float> values) {
  const ScaledFormat& format = of.named.format;
  const auto [rows, columns] = MatrixShape(source.tensor->role, source.tensor->shape);
  const MatrixView matrix = {values, rows, columns};
  const bool parameter = source.tensor->role == Role::kValue || source.tensor->role == Role::kGrad;
  const MatrixChannels channels = parameter ? MatrixChannels::kRows : MatrixChannels::kColumns;
  const auto delayed = of.delayed.find(source.tensor->name);
  std::optional<float> scale;
  if (delayed != of.delayed.end()) scale = delayed->second.scale();
  Found found;
  if (format.delayed) found.largest = LargestMagnitude(values);
  const std::vector<BlockAxis> axes = AxesOf(source.tensor->role, format);
  for (size_t i = 0; i < axes.size(); ++i) {
    found.by_axis[i] = MeasureScaled(format, ElementOf(source.tensor->role, format), matrix,
                                     axes[i], channels, scale);
  }
  return found;
}

// Another micro-step of the same tensor.
void ScaledReplay::Merge(const Found& from, Found& into) {
  into.largest = std::fmax(into.largest, from.largest);
  for (size_t axis = 0; axis < 2; ++axis) {
    const ScaledStats& other = from.by_axis[axis];
    ScaledStats& stats = into.by_axis[axis];
    if (other.stats.elements == 0) continue;
    const bool first = stats.stats.elements == 0;
    stats.stats.Merge(other.stats);
    stats.min_scale = first ? other.min_scale : std::fmin(stats.min_scale, other.min_scale);
    stats.max_scale = std::fmax(stats.max_scale, other.max_scale);
    stats.mean_channel_harm = std::fmax(stats.mean_channel_harm, other.mean_channel_harm);
    stats.worst_channel_harm = std::fmax(stats.worst_channel_harm, other.worst_channel_harm);
  }
}

void ScaledReplay::AddFound(int64_t step, const Source& source, const Found& found, size_t place,
                            OfFormat& format) {
  ScaledTensor& tensor =
      format.tensors.Of(source.tensor->name, place, source.tensor->role, source.judged);
  const bool second = found.by_axis[1].stats.elements > 0 &&
                      found.by_axis[1].stats.harm() > found.by_axis[0].stats.harm();
  const ScaledStats& worse = found.by_axis[second ? 1 : 0];
  for (size_t axis = 0; axis < 2; ++axis) {
    tensor.by_axis[axis].Merge(found.by_axis[axis].stats);
  }
  const bool first = tensor.scales.max == 0;
  tensor.scales.min =
      first ? worse.min_scale : std::min<double>(tensor.scales.min, worse.min_scale);
  tensor.scales.max = std::max<double>(tensor.scales.max, worse.max_scale);
  tensor.scales.final = worse.min_scale;
  const uint64_t clipped =
      std::max(found.by_axis[0].stats.overflow, found.by_axis[1].stats.overflow);
  if (clipped > 0) {
    ++tensor.clipped_steps;
    if (!tensor.first_clipped_step) tensor.first_clipped_step = step;
  }
  if (worse.stats.sum_of_squares == 0) return;
  const double harm = worse.stats.harm();
  tensor.harm.Add(harm);
  tensor.channel_harm.Add(worse.mean_channel_harm);
  tensor.worst_channel_harm = std::max(tensor.worst_channel_harm, worse.worst_channel_harm);
  if (!tensor.judged) return;
  ScaledStep& of_step = format.steps.back();
  of_step.clipped += clipped;
  AddHarm(tensor.name, harm, IsForward(tensor.role) ? of_step.forward : of_step.backward);
}

void ScaledReplay::Add(const GradientStep& step) {
  const TraceStep* const recorded = step.Recorded();
  if (recorded == nullptr) {
    throw InputError("--format", "scaled formats need the values of tensors", "a trace",
                     "a profile");
  }
  const std::set<std::string> float32 = step.Listed(kAutocastFloat32Key);
  std::vector<Source> sources;
  for (const Recording& recording : recorded->recordings) {
    for (const TraceTensor& tensor : recording.tensors) {
      sources.push_back({&recording, &tensor, IsJudged(tensor, float32)});
    }
  }
  for (OfFormat& format : formats_) {
    const ScaledFormat& row = format.named.format;
    format.steps.push_back({.step = step.number(), .forward = {}, .backward = {}});
    for (const Source& source : sources) {
      if (!row.delayed) break;
      format.delayed.try_emplace(source.tensor->name, row, ElementOf(source.tensor->role, row));
    }
  }
  std::vector<std::vector<Found>> found(sources.size());
  ParallelFor(sources.size(), [&](size_t i) {
    std::vector<float> values;
    values.reserve(sources[i].tensor->elements);
    VisitValues(*sources[i].recording, *sources[i].tensor,
                [&](uint64_t, std::span<const float> chunk) {
                  values.insert(values.end(), chunk.begin(), chunk.end());
                });
    for (const OfFormat& format : formats_) found[i].push_back(Convert(sources[i], format, values));
  });
  // Micro-steps of a tensor follow each other in the order of recordings.
  std::map<std::string, std::vector<size_t>> same;
  std::vector<size_t> order;
  for (size_t i = 0; i < sources.size(); ++i) {
    std::vector<size_t>& places = same[sources[i].tensor->name];
    if (places.empty()) order.push_back(i);
    places.push_back(i);
  }
  for (size_t f = 0; f < formats_.size(); ++f) {
    OfFormat& format = formats_[f];
    for (size_t place = 0; place < order.size(); ++place) {
      const Source& source = sources[order[place]];
      Found all = std::move(found[order[place]][f]);
      for (const size_t other : same[source.tensor->name]) {
        if (other != order[place]) Merge(found[other][f], all);
      }
      AddFound(step.number(), source, all, place, format);
      if (observer_) {
        observer_({format.named.name, step.number(), *source.tensor, source.judged, all.by_axis});
      }
      const auto delayed = format.delayed.find(source.tensor->name);
      if (delayed != format.delayed.end()) delayed->second.Advance(all.largest);
    }
    TakeMean(format.steps.back().forward);
    TakeMean(format.steps.back().backward);
  }
}

std::vector<ScaledAdvice> ScaledReplay::Take() {
  std::vector<ScaledAdvice> advice;
  for (OfFormat& format : formats_) {
    ScaledAdvice& of = advice.emplace_back();
    of.format = format.named.name;
    of.row = format.named.format;
    of.steps = std::move(format.steps);
    of.tensors = format.tensors.Take();
    for (const ScaledTensor& tensor : of.tensors) {
      if (tensor.judged && tensor.harm.steps > 0) of.looked_at.insert(tensor.role);
    }
  }
  return advice;
}

std::vector<ScaledAdvice> ReplayScaled(const GradientSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const std::function<void(size_t)>& done,
                                       const ScaledObserver& observer) {
  ScaledReplay replay(formats, observer);
  for (size_t i = 0; i < source.step_count(); ++i) {
    replay.Add(*source.Load(i, StepNeeds::kTensors));
    if (done) done(i + 1);
  }
  return replay.Take();
}

}  // namespace dlsim::sim
