// SPDX-License-Identifier: Apache-2.0
// How far the sums and counts of a tensor's results can be from what its histograms suggest.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "sim/replay/profile_question.h"

namespace dlsim::sim {
namespace {

constexpr double kRounding = 0x1p-20;       // of scaling, unscaling and a float64 sum; relative
constexpr double kLeastSpacing = 0x1p-149;  // of float32

uint64_t NonzeroCount(const Histogram& histogram) {
  return histogram.elements - histogram.zeros - histogram.nan;
}

double Square(double value) { return value * value; }

// What is the least sum of squares, given the largest result of each sign.
double LeastSquares(const Histogram& histogram, const std::array<float, 2>& largest) {
  if (histogram.inf == 0) return Square(largest[0]) + Square(largest[1]);
  return static_cast<double>(histogram.inf) * Square(largest[0]) * (1 - kRounding);
}

// Counts the results on either side of a limit; NaN is on neither.
struct CutCounts {
  Bracket<uint64_t> below, above;
};

CutCounts Count(const LimitCut& cut, const HistogramIndex& index) {
  CutCounts counts;
  for (const Sign sign : kSigns) {
    const Bracket<uint64_t> below = index.At(sign, cut.reached[static_cast<size_t>(sign)]).count;
    const uint32_t nan = cut.nan[static_cast<size_t>(sign)];
    Bracket<uint64_t> above = Between(below, index.At(sign, nan).count);
    // The largest value is known exactly.
    const uint32_t largest = index.histogram().Of(sign).largest;
    if (largest >= cut.reached[static_cast<size_t>(sign)] && largest < nan) {
      above.low = std::max<uint64_t>(above.low, 1);
    }
    counts.below.Add(below);
    counts.above.Add(above);
  }
  const auto add_all = [&](const std::optional<bool>& reaches, uint64_t count) {
    if (reaches) (*reaches ? counts.above : counts.below).Add({count, count});
  };
  add_all(cut.zero, index.histogram().zeros);
  add_all(cut.infinity, index.histogram().inf);
  return counts;
}

// Stores a number that is the same at both ends.
template <class T>
void SetAll(PartAnswer& part, T GradientDetail::*field, T value) {
  part.low.detail.*field = part.estimate.detail.*field = part.high.detail.*field = value;
}

// Stores an estimate within its bounds.
void SetWithin(double low, double estimate, double high, double GradientDetail::*field,
               PartAnswer& part) {
  part.low.detail.*field = low;
  part.high.detail.*field = std::max(low, high);
  part.estimate.detail.*field = std::clamp(estimate, low, std::max(low, high));
}

}  // namespace

// For results that are finite.
void ProfileQuestion::BoundSquares(const HistogramIndex& index, PartAnswer& part) const {
  const double values = static_cast<double>(NonzeroCount(index.histogram()));
  if (values == 0) return;
  const double largest = std::max(part.unscaled[0], part.unscaled[1]);
  const double least = LeastSquares(index.histogram(), part.unscaled);
  const double most = values * Square(largest) * (1 + kRounding);
  const double slack = kLeastSpacing * std::sqrt(values);
  const Bracket<double>& squares = part.counters.quantized_squares;
  const double low = Square(std::max(0.0, std::sqrt(squares.low) - slack));
  const double high = Square(std::sqrt(squares.high) + slack);
  part.low.effective_sum_of_squares = std::fmax(least, low);
  part.high.effective_sum_of_squares =
      std::fmax(part.low.effective_sum_of_squares, std::fmin(most, high));
  part.estimate.effective_sum_of_squares =
      std::clamp(part.counters.stats.quantized_sum_of_squares, part.low.effective_sum_of_squares,
                 part.high.effective_sum_of_squares);
}

// Of results whose scaled values are finite.
void ProfileQuestion::BoundScaledSquares(const HistogramIndex& index, PartAnswer& part) const {
  const double values = static_cast<double>(NonzeroCount(index.histogram()));
  if (values == 0) return;
  const double largest = std::max(part.scaled[0], part.scaled[1]);
  const double least = LeastSquares(index.histogram(), part.scaled);
  const double most = values * Square(largest) * (1 + kRounding);
  const double scale = question_.scale();
  const double low = part.low.effective_sum_of_squares * scale * scale * (1 - kRounding);
  const double high = part.high.effective_sum_of_squares * scale * scale * (1 + kRounding);
  const bool exact_inverse = std::isnormal(1.0f / question_.scale());
  const double estimate = part.estimate.effective_sum_of_squares * scale * scale;
  SetWithin(exact_inverse ? std::min(most, std::fmax(least, low)) : least,
            std::isfinite(estimate) ? estimate : least,
            exact_inverse ? std::fmin(most, high) : most, &GradientDetail::scaled_sum_of_squares,
            part);
}

// Of results whose scaled values are finite.
void ProfileQuestion::BoundScaledSum(const HistogramIndex& index, PartAnswer& part) const {
  const Histogram& histogram = index.histogram();
  const double values = static_cast<double>(NonzeroCount(histogram));
  if (values == 0) return;
  const double largest = std::max(part.scaled[0], part.scaled[1]);
  const double scale = question_.scale();
  // A result differs from its scaled input by a share of it, or by less than the smallest result.
  const Format& format = question_.conversion().format;
  const double share = std::ldexp(1.0, -format.mantissa_bits) + kRounding;
  const double magnitudes = std::sqrt(values * part.counters.stats.sum_of_squares) * scale;
  const double error = share * magnitudes + MinPositive(format) * values;
  const bool clamps = part.counters.overflow.high > 0 || histogram.inf > 0;
  const double widest = values * largest * (1 + kRounding);
  const double sum = std::clamp(histogram.sum * scale, -widest, widest);
  part.sum_radius = clamps || !(error < widest) ? 2 * widest : error;
  part.estimate.detail.scaled_sum = sum;
  part.low.detail.scaled_sum = std::max(0.0, std::fabs(sum) - part.sum_radius);
  part.high.detail.scaled_sum = std::min(widest, std::fabs(sum) + part.sum_radius);
}

void ProfileQuestion::BoundDetail(const HistogramIndex& index, const Magnitudes& sums,
                                  PartAnswer& part) const {
  const CutCounts edge = Count(edge_, index), limit = Count(limit_, index);
  part.low.detail.below_edge = edge.below.high;
  part.estimate.detail.below_edge = edge.below.Middle();
  part.high.detail.below_edge = edge.below.low;
  part.low.detail.above_edge = edge.above.low;
  part.estimate.detail.above_edge = edge.above.Middle();
  part.high.detail.above_edge = edge.above.high;
  part.low.detail.above_limit = limit.above.low;
  part.estimate.detail.above_limit = limit.above.Middle();
  part.high.detail.above_limit = limit.above.high;
  SetAll(part, &GradientDetail::elements, index.histogram().elements);
  SetAll(part, &GradientDetail::absmax,
         std::isfinite(sums.unscaled) ? std::max(part.unscaled[0], part.unscaled[1])
                                      : std::numeric_limits<float>::infinity());
  if (std::isfinite(sums.scaled)) {
    BoundScaledSquares(index, part);
    BoundScaledSum(index, part);
    return;
  }
  SetAll(part, &GradientDetail::scaled_sum, sums.scaled);
  SetAll(part, &GradientDetail::scaled_sum_of_squares, sums.scaled);
}

}  // namespace dlsim::sim
