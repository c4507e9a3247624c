// SPDX-License-Identifier: Apache-2.0
// What Cerebras' TensorFlow trainer logs of each gradient: sparsity, denormals, norm and a
// histogram of magnitudes. Definitions: Cerebras Model Zoo, modelzoo/common/tf/Trainer.py,
// log_training_summaries; docs/summaries.md says where dlsim is more exact.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/trace.h"

namespace dlsim {

// Below these magnitudes the trainer calls nonzero values denormal: with and without mixed
// precision.
inline constexpr float kMixedPrecisionMinNormal = 0x1p-14f;
inline constexpr float kFloat32MinNormal = 0x1p-126f;

// floor(log2) of the smallest and of the largest finite float32 magnitude.
inline constexpr int kLowestExponent = -149;
inline constexpr int kHighestExponent = 127;

// How many finite nonzero values have each floor(log2(magnitude)), from kLowestExponent on.
using ExponentCounts = std::array<uint64_t, kHighestExponent - kLowestExponent + 1>;

// Whether to count the buckets of TensorFlow's histogram too.
enum class TensorflowHistogram : uint8_t { kOmit, kCount };

struct SummaryOptions {
  float min_normal = kMixedPrecisionMinNormal;  // denormal is 0 < magnitude < min_normal
  float scale = 1.0f;                           // multiplies each value in float32 first
  std::optional<Format> quantize;  // then rounds to this format: to nearest even, or to infinity
  TensorflowHistogram tensorflow_histogram = TensorflowHistogram::kOmit;
};

// Counts are exact and of the values after scaling and quantising. The sum is float64 in the order
// of measure.h, so that the digits do not depend on threads or on the vector width.
struct TensorSummary {
  uint64_t elements = 0;
  uint64_t zeros = 0;  // +0 and -0
  uint64_t denormals = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  double sum_of_squares = 0;  // of all values: infinite or NaN if one is
  ExponentCounts exponents{};
  std::vector<uint64_t> tensorflow;  // per bucket of TensorflowBucketLimits(), if asked for

  // Shares of all elements; 0 without elements. NaN counts as nonzero and not denormal.
  double sparsity() const { return Share(zeros); }
  double denormal_fraction() const { return Share(denormals); }

  double norm() const { return std::sqrt(sum_of_squares); }
  uint64_t nonzero_finite() const { return elements - zeros - nan - inf; }

  // Adds the summary of what follows in index order.
  void Merge(const TensorSummary& later);

 private:
  double Share(uint64_t count) const {
    return elements == 0 ? 0 : static_cast<double>(count) / static_cast<double>(elements);
  }
};

// Summarizes each tensor of a recording, in order, on all threads: its values as float32 without
// the recording's own loss scale. Throws Error if reading fails.
std::vector<TensorSummary> SummarizeRecording(const Recording& recording,
                                              const SummaryOptions& options);

// Returns the exponent below or at which at least half of the finite nonzero values lie; nothing
// without any.
std::optional<int> MedianExponent(const TensorSummary& summary);

// Returns the upper limits of the buckets of TensorFlow's default histogram: 0 and plus and minus
// 1e-12 * 1.1^k below 1e20, and the largest float64 (tensorflow/core/lib/histogram/histogram.cc).
// Bucket i holds values from limit i-1 to below limit i. The trainer's values are
// log2(|x| + 2^-50): dlsim rounds the sum to float32 and takes the logarithm exactly.
std::span<const double> TensorflowBucketLimits();

}  // namespace dlsim
