// SPDX-License-Identifier: Apache-2.0
#include "sim/clip_step.h"

#include <algorithm>
#include <cmath>

namespace dlsim {
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
    if (!step.grad_norm_bracket) return;
    const auto [low, high] = *step.grad_norm_bracket;
    step.clip_coefficient_bracket = Bracket<float>{coefficient(high), coefficient(low)};
    record.clipped_bracket = {std::max(record.clipped_bracket.low, clips(low)),
                              std::max(record.clipped_bracket.high, clips(high))};
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
    if (!optimizer.clip_coefficient_bracket) continue;
    const Bracket<float> before =
        record.clip_coefficient_bracket.value_or(Bracket<float>{1.0f, 1.0f});
    record.clip_coefficient_bracket =
        Bracket<float>{SmallerCoefficient(before.low, optimizer.clip_coefficient_bracket->low),
                       SmallerCoefficient(before.high, optimizer.clip_coefficient_bracket->high)};
  }
}

void ClipByValue(const JudgedStep& judged, std::span<const size_t> groups, ReplayStep& record) {
  uint64_t clipped = 0;
  for (size_t t = 0; t < judged.answers.size(); ++t) {
    if (judged.step.tensors[t].role != Role::kGrad) continue;
    if (!record.optimizers.empty() && record.optimizers[groups[t]].skipped) continue;
    clipped += judged.answers[t].detail.above_limit;
    if (const auto& bounds = judged.answers[t].bounds) {
      if (!record.clipped_elements_bracket) record.clipped_elements_bracket.emplace();
      record.clipped_elements_bracket->low += bounds->low.detail.above_limit;
      record.clipped_elements_bracket->high += bounds->high.detail.above_limit;
    }
    record.clippable_elements += judged.answers[t].detail.elements;
  }
  record.clipped_elements = clipped;
  record.clipped = clipped > 0;
  if (const auto& bracket = record.clipped_elements_bracket) {
    record.clipped_bracket = {std::min<uint64_t>(1, bracket->low),
                              std::min<uint64_t>(1, bracket->high)};
  }
}

}  // namespace

void ClipStep(const ReplayRun& run, const JudgedStep& judged, std::span<const size_t> groups,
              ReplayStep& record) {
  if (record.skipped) return;
  if (run.clipping.max_norm) ClipByNorm(run, record);
  if (run.clipping.max_value) ClipByValue(judged, groups, record);
}

}  // namespace dlsim
