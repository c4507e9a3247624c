// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "src/base/check.h"
#include "src/base/double_double.h"
#include "src/histogram/counting_plan.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim {
namespace {

constexpr uint32_t kSmallest = 1;

// Adds n * 2^exponent exactly, as far as two doubles hold it.
void AddScaled(uint64_t n, int exponent, DoubleDouble& sum) {
  constexpr int kPiece = 32;  // bits that a double surely holds
  for (int shift = 0; n != 0; shift += kPiece, n >>= kPiece) {
    const double piece = static_cast<double>(static_cast<uint32_t>(n));
    sum.Add(std::ldexp(piece, exponent + shift));
  }
}

// Mostly both have the same bins, and nothing moves.
void MergeSign(const HistogramSums::OfSign& from, HistogramSums::OfSign& into) {
  into.largest = std::max(into.largest, from.largest);
  const size_t known = into.bins.size();
  size_t i = 0;
  for (const HistogramSums::Bin& bin : from.bins) {
    while (i < known && into.bins[i].bin < bin.bin) ++i;
    if (i == known || into.bins[i].bin != bin.bin) {
      into.bins.push_back(bin);
      continue;
    }
    into.bins[i].count += bin.count;
    into.bins[i].significands += bin.significands;
    into.bins[i].squares += bin.squares;
  }
  std::ranges::inplace_merge(into.bins, into.bins.begin() + static_cast<std::ptrdiff_t>(known), {},
                             &HistogramSums::Bin::bin);
}

}  // namespace

HistogramEdges::HistogramEdges(std::vector<uint32_t> edges) : bits_(std::move(edges)) {
  bits_.push_back(kSmallest);
  for (uint32_t exponent = 1; exponent <= 255; ++exponent) bits_.push_back(exponent << 23);
  std::sort(bits_.begin(), bits_.end());
  bits_.erase(std::unique(bits_.begin(), bits_.end()), bits_.end());
  if (bits_.front() == 0) bits_.erase(bits_.begin());
  DLSIM_CHECK(bits_.back() == codec::kInfinityBits);
  for (size_t bin = 0; bin < bin_count(); ++bin) {
    square_units_.push_back(std::ldexp(1.0, 2 * QuantumExponent(bits_[bin])));
  }
  plan_ = std::make_shared<const CountingPlan>(bits_);
}

size_t HistogramEdges::BinOf(uint32_t magnitude) const { return plan_->BinOf(magnitude); }

void HistogramSums::Merge(const HistogramSums& other) {
  elements += other.elements;
  zeros += other.zeros;
  nan += other.nan;
  inf += other.inf;
  for (size_t s = 0; s < signs.size(); ++s) MergeSign(other.signs[s], signs[s]);
}

Histogram HistogramSums::ToHistogram(const HistogramEdges& edges) const {
  Histogram histogram = {elements, zeros, nan, inf, 0, {}};
  DoubleDouble total;
  for (const Sign sign : kSigns) {
    const OfSign& from = signs[static_cast<size_t>(sign)];
    SignHistogram& into = histogram.Of(sign);
    into.largest = from.largest;
    into.bins.reserve(from.bins.size());
    DoubleDouble sum;
    for (const Bin& bin : from.bins) {
      into.bins.push_back({bin.bin, bin.count, bin.squares});
      AddScaled(bin.significands, QuantumExponent(edges.bits()[bin.bin]), sum);
    }
    total.Add(sign == Sign::kPositive ? sum : sum.Negated());
  }
  histogram.sum = total.Value();
  return histogram;
}

}  // namespace dlsim
