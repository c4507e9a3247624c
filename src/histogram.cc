// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "check.h"
#include "double_double.h"

namespace dlsim {
namespace {

constexpr uint32_t kSmallest = 1;
constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// Adds n * 2^exponent exactly, as far as two doubles hold it.
void AddScaled(uint128_t n, int exponent, DoubleDouble& sum) {
  constexpr int kPiece = 32;  // bits that a double surely holds
  for (int shift = 0; n != 0; shift += kPiece, n >>= kPiece) {
    const double piece = static_cast<double>(static_cast<uint32_t>(n));
    sum.Add(std::ldexp(piece, exponent + shift));
  }
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

void HistogramCounter::Merge(const HistogramCounter& other) {
  elements_ += other.elements_;
  zeros_ += other.zeros_;
  nan_ += other.nan_;
  inf_ += other.inf_;
  for (size_t s = 0; s < signs_.size(); ++s) {
    const OfSign& from = other.signs_[s];
    signs_[s].largest = std::max(signs_[s].largest, from.largest);
    for (size_t b = 0; b < from.sums.size(); ++b) {
      signs_[s].sums[b].count += from.sums[b].count;
      signs_[s].sums[b].significands += from.sums[b].significands;
      signs_[s].sums[b].squares += from.sums[b].squares;
    }
  }
}

Histogram HistogramCounter::Take() {
  Histogram histogram = {elements_, zeros_, nan_, inf_, 0, {}};
  DoubleDouble total;
  for (const Sign sign : kSigns) {
    OfSign& from = signs_[static_cast<size_t>(sign)];
    histogram.Of(sign).largest = from.largest;
    DoubleDouble of_sign;
    for (size_t b = 0; b < from.sums.size(); ++b) {
      const Sums& sums = from.sums[b];
      if (sums.count == 0) continue;
      histogram.Of(sign).bins.push_back({static_cast<uint32_t>(b), sums.count, sums.squares});
      AddScaled(sums.significands, QuantumExponent(edges_->bits()[b]), of_sign);
    }
    total.Add(sign == Sign::kPositive ? of_sign : of_sign.Negated());
  }
  histogram.sum = total.Value();
  *this = HistogramCounter(*edges_);
  return histogram;
}

}  // namespace dlsim
