// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/tensor_difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "src/histogram/histogram_index.h"

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `part` of `whole`: nothing of nothing is `of_nothing`.
double Ratio(double part, double whole, double of_nothing) {
  if (whole != 0) return part / whole;
  return part == 0 ? of_nothing : kInfinity;
}

// Counts by the biased exponent of float32; the first has all subnormals. Powers of two are edges
// of any histogram, so that bins do not straddle binades.
using Binades = std::array<uint64_t, 255>;

Binades BinadesOf(const BinnedTensor& tensor) {
  Binades binades{};
  for (const Sign sign : kSigns) {
    for (const HistogramBin& bin : tensor.histogram->Of(sign).bins) {
      binades[tensor.edges->bits()[bin.bin] >> 23] += bin.count;
    }
  }
  return binades;
}

uint64_t Total(const Binades& binades) {
  uint64_t total = 0;
  for (const uint64_t count : binades) total += count;
  return total;
}

// In one dimension the earth mover's distance is the area between the distribution functions.
double Distance(const Binades& a, const Binades& b) {
  const uint64_t of_a = Total(a), of_b = Total(b);
  if (of_a == 0 || of_b == 0) return of_a == of_b ? 0 : kInfinity;
  uint64_t below_a = 0, below_b = 0;
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    below_a += a[i];
    below_b += b[i];
    distance += std::fabs(static_cast<double>(below_a) / static_cast<double>(of_a) -
                          static_cast<double>(below_b) / static_cast<double>(of_b));
  }
  return distance;
}

double ShareOfZeros(const Histogram& histogram) {
  return Ratio(static_cast<double>(histogram.zeros), static_cast<double>(histogram.elements), 0);
}

uint64_t Apart(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

double NormOf(const BinnedTensor& tensor) {
  return std::sqrt(InputOf(HistogramIndex(*tensor.histogram, *tensor.edges)).sum_of_squares);
}

}  // namespace

double TensorDifference::norm_ratio() const { return Ratio(norm_b, norm_a, 1); }

double TensorDifference::difference() const {
  if (nonfinite_differences > 0) return kInfinity;
  if (relative_difference) return *relative_difference;
  return std::max(
      {std::fabs(norm_ratio() - 1), histogram_distance.value_or(0), zero_difference.value_or(0)});
}

void SetDifference(const PairSums& sums, TensorDifference& into) {
  into.elements = sums.elements;
  into.nonfinite_differences = sums.nonfinite_differences;
  into.norm_a = std::sqrt(sums.squares_a);
  into.norm_b = std::sqrt(sums.squares_b);
  into.relative_difference = Ratio(std::sqrt(sums.squares_of_difference), into.norm_a, 0);
  const double norms = std::sqrt(sums.squares_a * sums.squares_b);
  const bool both_zero = sums.squares_a == 0 && sums.squares_b == 0;
  into.cosine = norms == 0 ? (both_zero ? 1 : 0) : std::clamp(sums.product / norms, -1.0, 1.0);
}

void SetDifference(const BinnedTensor& a, const BinnedTensor& b, TensorDifference& into) {
  into.elements = a.histogram->elements;
  into.nonfinite_differences =
      Apart(a.histogram->nan, b.histogram->nan) + Apart(a.histogram->inf, b.histogram->inf);
  into.norm_a = NormOf(a);
  into.norm_b = NormOf(b);
  into.histogram_distance = Distance(BinadesOf(a), BinadesOf(b));
  into.zero_difference = std::fabs(ShareOfZeros(*a.histogram) - ShareOfZeros(*b.histogram));
}

}  // namespace dlsim::sim
