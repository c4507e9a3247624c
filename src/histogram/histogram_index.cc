// SPDX-License-Identifier: Apache-2.0
#include "src/histogram/histogram_index.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "src/base/check.h"
#include "src/base/double_double.h"

namespace dlsim {
namespace {

// Adds bins to sums of counts and of squares in float64.
struct BinSums {
  uint64_t count = 0;
  DoubleDouble squares;

  void Add(const HistogramBin& bin, const HistogramEdges& edges) {
    count += bin.count;
    squares.Add(SquaresOf(bin, edges));
  }
};

SignHistogram MergeSigns(const SignHistogram& a, const SignHistogram& b) {
  SignHistogram merged;
  merged.largest = std::max(a.largest, b.largest);
  merged.bins.reserve(a.bins.size() + b.bins.size());
  auto i = a.bins.begin();
  auto j = b.bins.begin();
  while (i != a.bins.end() || j != b.bins.end()) {
    if (j == b.bins.end() || (i != a.bins.end() && i->bin < j->bin)) {
      merged.bins.push_back(*i++);
    } else if (i == a.bins.end() || j->bin < i->bin) {
      merged.bins.push_back(*j++);
    } else {
      merged.bins.push_back({i->bin, i->count + j->count, i->squares + j->squares});
      ++i, ++j;
    }
  }
  return merged;
}

}  // namespace

double SquaresOf(const HistogramBin& bin, const HistogramEdges& edges) {
  const double high = static_cast<double>(static_cast<uint64_t>(bin.squares >> 64));
  const double low = static_cast<double>(static_cast<uint64_t>(bin.squares));
  return (high * 0x1p64 + low) * edges.square_unit(bin.bin);
}

Histogram MergeHistograms(const Histogram& a, const Histogram& b) {
  Histogram merged = {a.elements + b.elements, a.zeros + b.zeros, a.nan + b.nan,
                      a.inf + b.inf,           a.sum + b.sum,     {}};
  for (size_t s = 0; s < merged.signs.size(); ++s) {
    merged.signs[s] = MergeSigns(a.signs[s], b.signs[s]);
  }
  return merged;
}

EdgePlace PlaceOf(uint32_t threshold, const HistogramEdges& edges) {
  const uint32_t magnitude = std::max(threshold, 1u);
  if (magnitude >= codec::kInfinityBits) {
    return {codec::kInfinityBits, static_cast<uint32_t>(edges.bin_count()), false};
  }
  const size_t bin = edges.BinOf(magnitude);
  return {magnitude, static_cast<uint32_t>(bin), magnitude > edges.bits()[bin]};
}

void HistogramIndex::Set(const Histogram& histogram, const HistogramEdges& edges) {
  histogram_ = &histogram;
  edges_ = &edges;
  for (size_t s = 0; s < signs_.size(); ++s) {
    layout_ == Layout::kSparse ? FillSparse(histogram.signs[s], signs_[s])
                               : FillDense(histogram.signs[s], signs_[s]);
  }
}

void HistogramIndex::FillSparse(const SignHistogram& histogram, OfSign& into) const {
  into = {{}, {0}, {0}};
  into.bins.reserve(histogram.bins.size());
  into.counts.reserve(histogram.bins.size() + 1);
  into.squares.reserve(histogram.bins.size() + 1);
  BinSums sums;
  for (const HistogramBin& bin : histogram.bins) {
    sums.Add(bin, *edges_);
    into.bins.push_back(bin.bin);
    into.counts.push_back(sums.count);
    into.squares.push_back(sums.squares.Value());
  }
}

void HistogramIndex::FillDense(const SignHistogram& histogram, OfSign& into) const {
  const size_t bins = edges_->bin_count();
  into.counts.resize(bins + 1);
  into.squares.resize(bins + 1);
  size_t next = 0;
  BinSums sums;
  const auto fill = [&](size_t end) {
    const auto from = static_cast<std::ptrdiff_t>(next), to = static_cast<std::ptrdiff_t>(end);
    std::fill(into.counts.begin() + from, into.counts.begin() + to, sums.count);
    std::fill(into.squares.begin() + from, into.squares.begin() + to, sums.squares.Value());
    next = end;
  };
  for (const HistogramBin& bin : histogram.bins) {
    fill(size_t{bin.bin} + 1);
    sums.Add(bin, *edges_);
  }
  fill(bins + 1);
}

HistogramIndex::Below HistogramIndex::At(Sign sign, const EdgePlace& place) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  if (place.threshold > histogram_->Of(sign).largest) return of_sign.Up();
  size_t low = place.bin;
  bool inside = place.inside;
  if (layout_ == Layout::kSparse) {
    const auto first = std::lower_bound(of_sign.bins.begin(), of_sign.bins.end(), place.bin);
    low = static_cast<size_t>(first - of_sign.bins.begin());
    inside &= first != of_sign.bins.end() && *first == place.bin;
  }
  const size_t high = low + (inside ? 1 : 0);
  return {{of_sign.counts[low], of_sign.counts[high]},
          {of_sign.squares[low], of_sign.squares[high]}};
}

HistogramIndex::Below HistogramIndex::At(Sign sign, uint32_t threshold) const {
  if (threshold > histogram_->Of(sign).largest) return All(sign);
  return At(sign, PlaceOf(threshold, *edges_));
}

TensorStats InputOf(const HistogramIndex& index) {
  const Histogram& histogram = index.histogram();
  const uint32_t largest =
      std::max(histogram.Of(Sign::kPositive).largest, histogram.Of(Sign::kNegative).largest);
  TensorStats input;
  input.elements = histogram.elements;
  input.zeros = histogram.zeros;
  input.nan = histogram.nan;
  input.inf = histogram.inf;
  input.absmax = std::bit_cast<float>(largest);
  for (const Sign sign : kSigns) input.sum_of_squares += index.All(sign).squares.low;
  return input;
}

}  // namespace dlsim
