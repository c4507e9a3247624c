// SPDX-License-Identifier: Apache-2.0
#include "sim/clip_step.h"

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
  const auto clip = [&](double norm, std::optional<float>& coefficient) {
    const float norm32 = static_cast<float>(norm * factor);
    coefficient = ClipCoefficient(clipping.rule, max_norm, norm32);
    record.clipped |= Clips(clipping.rule, max_norm, norm32);
  };
  // Optimizers that skip on their own are clipped on their own.
  if (run.rules.optimizer_skip != OptimizerSkip::kOwn || record.optimizers.empty()) {
    return clip(record.grad_norm, record.clip_coefficient);
  }
  for (OptimizerStep& optimizer : record.optimizers) {
    if (optimizer.skipped || !optimizer.has_gradients) continue;
    clip(optimizer.grad_norm, optimizer.clip_coefficient);
    record.clip_coefficient =
        SmallerCoefficient(record.clip_coefficient.value_or(1.0f), *optimizer.clip_coefficient);
  }
}

void ClipByValue(const JudgedStep& judged, std::span<const size_t> groups, ReplayStep& record) {
  uint64_t clipped = 0;
  for (size_t t = 0; t < judged.answers.size(); ++t) {
    if (judged.step.tensors[t].role != Role::kGrad) continue;
    if (!record.optimizers.empty() && record.optimizers[groups[t]].skipped) continue;
    clipped += judged.answers[t].detail.above_limit;
    record.clippable_elements += judged.answers[t].detail.elements;
  }
  record.clipped_elements = clipped;
  record.clipped = clipped > 0;
}

}  // namespace

void ClipStep(const ReplayRun& run, const JudgedStep& judged, std::span<const size_t> groups,
              ReplayStep& record) {
  if (record.skipped) return;
  if (run.clipping.max_norm) ClipByNorm(run, record);
  if (run.clipping.max_value) ClipByValue(judged, groups, record);
}

}  // namespace dlsim
