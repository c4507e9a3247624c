// SPDX-License-Identifier: Apache-2.0
// The sum of micro-steps of which only histograms are known.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/replay/profile_question.h"

namespace dlsim::sim {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

// What the triangle inequality leaves of the norm of a sum: from the longest part less all others
// to all parts in one direction. The float32 sum rounds.
class NormSum {
 public:
  void Add(double low_squares, double estimate_squares, double high_squares) {
    const double low = std::sqrt(low_squares), high = std::sqrt(high_squares);
    least_ = std::fmax(least_ - high, low - total_);
    total_ += high;
    estimate_ += estimate_squares;
    ++parts_;
  }
  double Low() const {
    const double low = std::max(0.0, least_ - Error());
    return low * low;
  }
  double High() const { return (total_ + Error()) * (total_ + Error()); }
  double Estimate() const { return std::clamp(estimate_, Low(), High()); }

 private:
  double Error() const { return total_ * parts_ * 0x1p-23; }

  double least_ = 0, total_ = 0, estimate_ = 0;
  double parts_ = 0;
};

// Returns the largest magnitude that a float32 sum in this order can reach, over both signs.
float LargestSum(std::span<const PartAnswer> parts, std::array<float, 2> PartAnswer::*magnitudes) {
  std::array<float, 2> sums = {};
  for (const PartAnswer& part : parts) {
    for (size_t s = 0; s < sums.size(); ++s) sums[s] += (part.*magnitudes)[s];
  }
  return std::max(sums[0], sums[1]);
}

uint64_t MostElements(std::span<const PartAnswer> parts) {
  uint64_t most = 0;
  for (const PartAnswer& part : parts) most = std::max(most, part.counters.stats.elements);
  return most;
}

// The bounds where all parts are finite.
void SumFinite(std::span<const PartAnswer> parts, PartAnswer& sum) {
  NormSum unscaled, scaled;
  double total = 0;
  for (const PartAnswer& part : parts) {
    unscaled.Add(part.low.effective_sum_of_squares, part.estimate.effective_sum_of_squares,
                 part.high.effective_sum_of_squares);
    scaled.Add(part.low.detail.scaled_sum_of_squares, part.estimate.detail.scaled_sum_of_squares,
               part.high.detail.scaled_sum_of_squares);
    total += part.estimate.detail.scaled_sum;
    sum.sum_radius += part.sum_radius;
  }
  sum.low.effective_sum_of_squares = unscaled.Low();
  sum.estimate.effective_sum_of_squares = unscaled.Estimate();
  sum.high.effective_sum_of_squares = unscaled.High();
  sum.low.detail.scaled_sum_of_squares = scaled.Low();
  sum.estimate.detail.scaled_sum_of_squares = scaled.Estimate();
  sum.high.detail.scaled_sum_of_squares = scaled.High();
  const double values = static_cast<double>(MostElements(parts));
  sum.sum_radius += static_cast<double>(parts.size()) * 0x1p-23 * std::sqrt(values * scaled.High());
  sum.estimate.detail.scaled_sum = total;
  sum.low.detail.scaled_sum = std::max(0.0, std::fabs(total) - sum.sum_radius);
  sum.high.detail.scaled_sum = std::fabs(total) + sum.sum_radius;
}

// What is known of single elements: how large they may be, and that a sum may overflow.
void SumElements(std::span<const PartAnswer> parts, PartAnswer& sum) {
  const float scaled = LargestSum(parts, &PartAnswer::scaled);
  const float unscaled = LargestSum(parts, &PartAnswer::unscaled);
  for (GradientBound* likely : {&sum.estimate, &sum.high}) {
    if (!std::isfinite(scaled)) {
      likely->scaled_sum_finite = false;
      likely->detail.scaled_sum = likely->detail.scaled_sum_of_squares = double{kFloatInfinity};
    }
    if (!std::isfinite(unscaled)) likely->effective_sum_of_squares = double{kFloatInfinity};
  }
  float longest = 0;
  for (const PartAnswer& part : parts) {
    longest = std::max({longest, part.unscaled[0], part.unscaled[1]});
  }
  sum.low.detail.absmax = 0;
  sum.estimate.detail.absmax = std::isfinite(unscaled) ? longest : kFloatInfinity;
  sum.high.detail.absmax = unscaled;
}

bool HasFiniteParts(const PartAnswer& part) {
  return part.low.scaled_sum_finite && std::isfinite(part.low.effective_sum_of_squares);
}

// Where some part is not finite its sum is not either. Opposite infinities may meet and make a NaN.
void SumNonfinite(std::span<const PartAnswer> parts, PartAnswer& sum) {
  GradientBound bound;
  for (const PartAnswer& part : parts) {
    bound.effective_sum_of_squares += part.low.effective_sum_of_squares;
    bound.scaled_sum_finite &= part.low.scaled_sum_finite;
  }
  if (!std::isfinite(bound.effective_sum_of_squares)) bound.detail.absmax = kFloatInfinity;
  if (!bound.scaled_sum_finite) {
    bound.detail.scaled_sum = bound.detail.scaled_sum_of_squares = double{kFloatInfinity};
  }
  sum.low = sum.estimate = sum.high = bound;
}

// Which elements of the parts meet is not known.
void SumCounts(std::span<const PartAnswer> parts, uint64_t elements, PartAnswer& sum) {
  uint64_t below = 0, above = 0, limit = 0;
  for (const PartAnswer& part : parts) {
    below += part.estimate.detail.below_edge;
    above += part.estimate.detail.above_edge;
    limit += part.estimate.detail.above_limit;
  }
  sum.low.detail.below_edge = sum.high.detail.above_edge = sum.high.detail.above_limit = elements;
  sum.estimate.detail.below_edge = below / parts.size();
  sum.estimate.detail.above_edge = above / parts.size();
  sum.estimate.detail.above_limit = limit / parts.size();
}

// One part with results, and zeros from the others.
PartAnswer WithZeros(const PartAnswer& part, uint64_t elements) {
  PartAnswer sum = part;
  const uint64_t zeros = elements - part.counters.stats.elements;
  for (GradientBound* bound : {&sum.low, &sum.estimate, &sum.high}) {
    bound->detail.elements = elements;
    bound->detail.below_edge += zeros;
  }
  return sum;
}

}  // namespace

PartAnswer SumParts(std::span<const PartAnswer> parts) {
  std::vector<PartAnswer> present;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(present),
               [](const PartAnswer& part) { return !part.all_zero; });
  const uint64_t elements = MostElements(parts);
  if (present.size() <= 1) {
    return WithZeros(present.empty() ? parts.front() : present.front(), elements);
  }
  PartAnswer sum;
  sum.all_zero = false;
  if (std::all_of(present.begin(), present.end(), HasFiniteParts)) {
    SumFinite(present, sum);
    SumElements(present, sum);
  } else {
    SumNonfinite(present, sum);
  }
  SumCounts(present, elements, sum);
  for (GradientBound* bound : {&sum.low, &sum.estimate, &sum.high}) {
    bound->detail.elements = elements;
  }
  return sum;
}

}  // namespace dlsim::sim
