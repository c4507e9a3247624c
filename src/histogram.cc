// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "check.h"
#include "double_double.h"

namespace dlsim {
namespace {

constexpr uint32_t kSmallest = 1;
constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// Adds n * 2^exponent exactly, as far as two doubles hold it.
void AddScaled(uint64_t n, int exponent, DoubleDouble& sum) {
  constexpr int kPiece = 32;  // bits that a double surely holds
  for (int shift = 0; n != 0; shift += kPiece, n >>= kPiece) {
    const double piece = static_cast<double>(static_cast<uint32_t>(n));
    sum.Add(std::ldexp(piece, exponent + shift));
  }
}

void MergeSign(const HistogramSums::OfSign& from, HistogramSums::OfSign& into) {
  into.largest = std::max(into.largest, from.largest);
  std::vector<HistogramSums::Bin> merged;
  merged.reserve(into.bins.size() + from.bins.size());
  std::merge(into.bins.begin(), into.bins.end(), from.bins.begin(), from.bins.end(),
             std::back_inserter(merged),
             [](const auto& a, const auto& b) { return a.bin < b.bin; });
  size_t last = 0;  // equal bins are neighbours now
  for (size_t i = 1; i < merged.size(); ++i) {
    if (merged[i].bin != merged[last].bin) {
      merged[++last] = merged[i];
      continue;
    }
    merged[last].count += merged[i].count;
    merged[last].significands += merged[i].significands;
    merged[last].squares += merged[i].squares;
  }
  if (!merged.empty()) merged.resize(last + 1);
  into.bins = std::move(merged);
}

}  // namespace

HistogramEdges::HistogramEdges(std::vector<uint32_t> edges) : bits_(std::move(edges)) {
  bits_.push_back(kSmallest);
  for (uint32_t exponent = 1; exponent <= 255; ++exponent) bits_.push_back(exponent << 23);
  std::sort(bits_.begin(), bits_.end());
  bits_.erase(std::unique(bits_.begin(), bits_.end()), bits_.end());
  if (bits_.front() == 0) bits_.erase(bits_.begin());
  DLSIM_CHECK(bits_.back() == codec::kInfinityBits);
}

size_t HistogramEdges::BinOf(uint32_t magnitude) const {
  const auto above = std::upper_bound(bits_.begin(), bits_.end(), magnitude);
  return static_cast<size_t>(above - bits_.begin()) - 1;
}

HistogramCounter::HistogramCounter(const HistogramEdges& edges) : edges_(&edges) {
  for (OfSign& sign : signs_) sign.sums.resize(edges.bin_count());
}

void HistogramCounter::Add(std::span<const float> values) {
  elements_ += values.size();
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & ~codec::kSignBit;
    if (magnitude == 0) {
      ++zeros_;
    } else if (magnitude >= codec::kInfinityBits) {
      ++(magnitude == codec::kInfinityBits ? inf_ : nan_);
    } else {
      OfSign& sign = signs_[bits >> 31];
      sign.largest = std::max(sign.largest, magnitude);
      Sums& sums = sign.sums[edges_->BinOf(magnitude)];
      const uint64_t significand = Significand(magnitude);
      ++sums.count;
      sums.significands += significand;
      sums.squares += significand * significand;
    }
  }
}

HistogramSums HistogramCounter::TakeSums() {
  HistogramSums taken = {elements_, zeros_, nan_, inf_, {}};
  for (size_t s = 0; s < signs_.size(); ++s) {
    taken.signs[s].largest = signs_[s].largest;
    for (size_t b = 0; b < signs_[s].sums.size(); ++b) {
      const Sums& sums = signs_[s].sums[b];
      if (sums.count == 0) continue;
      taken.signs[s].bins.push_back(
          {static_cast<uint32_t>(b), sums.count, sums.significands, sums.squares});
    }
  }
  *this = HistogramCounter(*edges_);
  return taken;
}

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
