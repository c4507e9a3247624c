// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/clip_step.h"

#include <algorithm>
#include <cmath>

namespace dlsim::sim {
namespace {

// Returns the smaller; NaN if one is.
float SmallerCoefficient(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::fmin(a, b);
}

void ClipByNorm(const ReplayRun& run, ReplayStep& record) {
  const Clipping& clipping = run.clipping;
  const double factor = clipping.domain == ClipDomain::kScaled ? record.scale : 1.0;
  const float max_norm = static_cast<float>(*clipping.max_norm);
  const auto norm32 = [&](double norm) { return static_cast<float>(norm * factor); };
  const auto coefficient = [&](double norm) {
    return ClipCoefficient(clipping.rule, max_norm, norm32(norm));
  };
  const auto clips = [&](double norm) -> uint64_t {
    return Clips(clipping.rule, max_norm, norm32(norm)) ? 1 : 0;
  };
  const auto clip = [&](auto& step) {
    step.clip_coefficient = coefficient(step.grad_norm);
    record.clipped |= clips(step.grad_norm) > 0;
    if (!record.uncertain) return;
    const auto [low, high] = step.uncertain->grad_norm;
    step.uncertain->clip_coefficient = Bracket<float>{coefficient(high), coefficient(low)};
    record.uncertain->clipped.RaiseTo({clips(low), clips(high)});
  };
  // Optimizers that skip on their own are clipped on their own.
  if (run.rules.optimizer_skip != OptimizerSkip::kOwn || record.optimizers.empty()) {
    return clip(record);
  }
  for (OptimizerStep& optimizer : record.optimizers) {
    if (optimizer.skipped || !optimizer.has_gradients) continue;
    clip(optimizer);
    record.clip_coefficient =
        SmallerCoefficient(record.clip_coefficient.value_or(1.0f), *optimizer.clip_coefficient);
    if (!record.uncertain) continue;
    std::optional<Bracket<float>>& of_step = record.uncertain->clip_coefficient;
    const Bracket<float> before = of_step.value_or(Bracket<float>{1.0f, 1.0f});
    const Bracket<float>& own = *optimizer.uncertain->clip_coefficient;
    of_step = Bracket<float>{SmallerCoefficient(before.low, own.low),
                             SmallerCoefficient(before.high, own.high)};
  }
}

void ClipByValue(const JudgedStep& judged, std::span<const size_t> groups, ReplayStep& record) {
  uint64_t clipped = 0;
  for (size_t t = 0; t < judged.answers.size(); ++t) {
    if (judged.step.tensors[t].role != Role::kGrad) continue;
    if (!record.optimizers.empty() && record.optimizers[groups[t]].skipped) continue;
    clipped += judged.answers[t].detail.above_limit;
    if (const auto& bounds = judged.answers[t].bounds) {
      record.uncertain->clipped_elements.Add(
          {bounds->low.detail.above_limit, bounds->high.detail.above_limit});
    }
    record.clippable_elements += judged.answers[t].detail.elements;
  }
  record.clipped_elements = clipped;
  record.clipped = clipped > 0;
  if (!record.uncertain) return;
  const Bracket<uint64_t>& elements = record.uncertain->clipped_elements;
  record.uncertain->clipped = {std::min<uint64_t>(1, elements.low),
                               std::min<uint64_t>(1, elements.high)};
}

}  // namespace

void ClipStep(const ReplayRun& run, const JudgedStep& judged, std::span<const size_t> groups,
              ReplayStep& record) {
  if (record.skipped) return;
  if (run.clipping.max_norm) ClipByNorm(run, record);
  if (run.clipping.max_value) ClipByValue(judged, groups, record);
}

}  // namespace dlsim::sim
