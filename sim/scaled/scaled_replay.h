// SPDX-License-Identifier: Apache-2.0
// Converts each recorded tensor to scaled formats, step by step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/scaled_format.h"
#include "dlsim/sim/scaled.h"
#include "dlsim/sim/step.h"

namespace dlsim::sim {

// What became of a tensor at a step in one format, with blocks along each axis; the second is empty
// if the tensor has one scale.
struct ObservedScaled {
  const std::string& format;
  int64_t step;
  const TensorInfo& tensor;
  bool judged;
  const std::array<ScaledStats, 2>& by_axis;
};
using ScaledObserver = std::function<void(const ObservedScaled&)>;

// Whether a source answers for a format: a trace for all, a profile for those that it was made for.
bool Answers(const SourceFacts& facts, const ScaledFormat& format);

// Throws Error (exit code 3) unless it answers for all.
void RequireAnswers(const SourceFacts& facts, std::span<const NamedScaledFormat> formats);

// Goes through all steps of a source; `done(steps)` is called after each. Throws as RequireAnswers.
std::vector<ScaledAdvice> ReplayScaled(const StepSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const std::function<void(size_t)>& done,
                                       const ScaledObserver& observer = {});

}  // namespace dlsim::sim
