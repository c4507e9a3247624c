// SPDX-License-Identifier: Apache-2.0
// How one gradient differs between two runs at one step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dlsim/histogram.h"
#include "dlsim/trace.h"
#include "sim/diff/compare_tensors.h"

namespace dlsim::sim {

// What is known of two gradients, a and b, of one shape.
struct TensorDifference {
  std::string name;
  Role role = Role::kGrad;
  uint64_t elements = 0;
  double norm_a = 0, norm_b = 0;  // float64 L2 norms

  // Elements that are infinite or NaN in one and something else in the other; of histograms by how
  // much their counts differ.
  uint64_t nonfinite_differences = 0;

  // Of elements: the norm of b - a over that of a, and the cosine of the angle between them.
  std::optional<double> relative_difference = {}, cosine = {};

  // Of histograms: the earth mover's distance of the nonzero magnitudes in binades, and how far the
  // shares of zeros are apart.
  std::optional<double> histogram_distance = {}, zero_difference = {};

  // The norm of b over that of a: 1 if both are zero, infinite if only a is.
  double norm_ratio() const;

  // What is compared with the threshold: the relative difference, or of histograms the largest of
  // |norm ratio - 1|, distance and difference of zeros; infinite with nonfinite_differences.
  double difference() const;
};

// Fills in the figures of elements. Both zero: difference 0, cosine 1; one of them: cosine 0, and
// difference 1 or, if a is zero, infinite.
void SetDifference(const PairSums& sums, TensorDifference& into);

// A histogram with the edges of its bins; both must live as long as this.
struct BinnedTensor {
  const Histogram* histogram = nullptr;
  const HistogramEdges* edges = nullptr;
};

// Fills in the figures of histograms.
void SetDifference(const BinnedTensor& a, const BinnedTensor& b, TensorDifference& into);

}  // namespace dlsim::sim
