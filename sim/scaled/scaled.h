// SPDX-License-Identifier: Apache-2.0
// Converts each recorded tensor to scaled formats, step by step; what is said of it, in words and
// in JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/scaled_format.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// Delayed scaling, TransformerEngine's: the scale of a tensor at a step follows from the largest
// magnitudes of steps before.
class DelayedScale {
 public:
  // `format` has delayed scaling; `element` is the format of this tensor's elements.
  DelayedScale(const ScaledFormat& format, const Format& element);

  // Returns the scale to use at the coming step; 1 at the first.
  float scale() const { return scale_; }

  // Ends a step with the largest magnitude of the tensor in it. Where that of the history is zero,
  // infinite or NaN, the scale stays.
  void Advance(float largest);

 private:
  ScaledFormat format_;
  Format element_;
  float scale_ = 1;
  std::vector<float> history_;  // [0] is the step that ends, [1] the oldest
};

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

// Goes through all steps of a source. Throws as RequireAnswers.
std::vector<ScaledAdvice> ReplayScaled(const StepSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const ScaledObserver& observer = {});

Verdict VerdictOn(const ScaledAdvice& format);

// Returns what the gradients of activations lose, over the steps that have any.
HarmOverSteps BackwardHarm(const ScaledAdvice& format);

// Returns the sentence on a format.
std::string ScaledSentence(const ScaledAdvice& format);

// Returns the sentence on what was looked at where no other formats were asked for.
std::string ScaledBasis(const ScaledAdvice& format);

// Returns a table of the formats, and of each the `top` tensors that lose most; empty without any.
std::string FormatScaledDetails(std::span<const ScaledAdvice> formats, size_t top);

// Returns the figures that may be expected of a format: mean and worst harm of both passes, null
// where nothing of a pass was recorded, steps that fail, and clipped elements.
std::vector<Figure> ScaledFigures(const ScaledAdvice& format);

// What `verdict.formats[].scaled` holds; `format` lives until it is told.
TellRows RowsOf(const ScaledAdvice& format);

// The columns of a CSV file of scaled formats, and the rows of a tensor: one for each axis.
std::string ScaledCsvHeader();
std::string ScaledCsvRows(const ObservedScaled& found);

void AddScaledKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
