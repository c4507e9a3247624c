// SPDX-License-Identifier: Apache-2.0
// Measures the gradients of a step element by element: what its tables do not tell.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <valarray>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/step_tables.h"
#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim {

// Which gradients are clipped: scaled ones shrink by the loss scale too much.
enum class ClipDomain : uint8_t { kUnscaled, kScaled };

constexpr auto EnumNames(ClipDomain) {
  return std::to_array<EnumName<ClipDomain>>(
      {{ClipDomain::kUnscaled, "unscaled"}, {ClipDomain::kScaled, "scaled"}});
}

// What to find out about the elements of the step's gradient, the sum over its micro-steps.
struct DetailQuestion {
  float edge = std::numeric_limits<float>::infinity();   // of the scaled magnitudes
  float limit = std::numeric_limits<float>::infinity();  // of magnitudes, to clip at
  ClipDomain limit_domain = ClipDomain::kUnscaled;
  bool sums = true;    // the two of GradientDetail, which cost the most: left at 0 by some without
  bool absmax = true;  // the one of GradientDetail; found by most without, too

  friend bool operator==(const DetailQuestion&, const DetailQuestion&) = default;
};

struct GradientDetail {
  double scaled_sum = 0;             // of the still scaled elements, float64 in index order
  double scaled_sum_of_squares = 0;  // the same for their squares
  float absmax = 0;                  // of the unscaled elements; infinity if one is not finite
  uint64_t below_edge = 0;           // scaled elements with a magnitude below the edge ...
  uint64_t above_edge = 0;           // ... and from it on; NaN is neither
  uint64_t above_limit = 0;          // elements that clipping by value changes
  uint64_t elements = 0;             // of the sum over micro-steps

  // Adds what follows in index order.
  void Merge(const GradientDetail& later) {
    scaled_sum += later.scaled_sum;
    scaled_sum_of_squares += later.scaled_sum_of_squares;
    absmax = later.absmax > absmax ? later.absmax : absmax;  // never NaN
    below_edge += later.below_edge;
    above_edge += later.above_edge;
    above_limit += later.above_limit;
    elements += later.elements;
  }
};

// One question about a step.
struct StepQuestion {
  Conversion conversion;
  float scale = 1.0f;
  std::vector<float> tensor_scales = {};  // instead of `scale`, per gradient; empty: one for all
  std::optional<DetailQuestion> detail = {};  // without it, Rest::detail stays empty

  // Whether Rest::converted_squares must be there: in any case, or where the float32 norm
  // of the step may be infinite.
  bool converted_norm = false;
  bool norm_decides = false;

  float ScaleOf(size_t tensor) const {
    return tensor_scales.empty() ? scale : tensor_scales[tensor];
  }
  friend bool operator==(const StepQuestion&, const StepQuestion&) = default;
};

// One question's answer for one gradient.
struct TensorAnswer {
  // What few questions ask for.
  struct Rest {
    std::vector<TensorStats> parts = {};  // of several; else empty

    // Of the step's gradient, the sum over its parts, where it was measured: after each part was
    // scaled, quantised and unscaled.
    std::optional<double> converted_squares = {};
    GradientDetail detail = {};  // if it was asked for
  };

  TensorStats total;          // over the parts
  double sum_of_squares = 0;  // of the sum over the parts, as recorded

  bool scaled_sum_finite = true;  // the float32 sum over the parts, still scaled, is finite
  bool unscaled_finite = true;    // that of the unscaled is; false if an element is not

  const Rest& rest() const {
    static const Rest nothing;
    return rest_ == nullptr ? nothing : *rest_;
  }
  Rest& MakeRest() {
    if (rest_ == nullptr) rest_ = std::make_unique<Rest>();
    return *rest_;
  }
  const TensorStats& Part(size_t part) const {
    return rest().parts.empty() ? total : rest().parts[part];
  }

 private:
  std::unique_ptr<Rest> rest_;  // null: none of it
};

// By gradient, in the order of StepTables::tensors.
using StepAnswer = std::vector<TensorAnswer>;

// Measures the gradients of a step on all threads. Throws Error if reading fails.
StepAnswer MeasureStep(const TraceStep& step, const StepQuestion& question,
                       const StepOptions& options);

// Returns the sum of the finite elements of each gradient of a step as recorded, over micro-steps.
std::vector<double> SumGradients(const TraceStep& step);

// Returns how many elements of each gradient have a magnitude from some bits on, NaN included,
// over parts: for each of several lists, which have the bits by gradient.
std::vector<std::valarray<uint64_t>> CountGradients(
    const TraceStep& step, Accumulation accumulation,
    std::span<const std::vector<uint32_t>> magnitudes);

// Returns the random stream of a tensor in a step: FNV-1a (32 bits) over the bytes of the name and
// the little-endian 64-bit step and micro-step (-1 for none).
uint32_t StreamOf(const std::string& tensor, int64_t step, int64_t micro);

}  // namespace dlsim
