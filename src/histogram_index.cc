// SPDX-License-Identifier: Apache-2.0
// Questions to histograms.
#include <algorithm>
#include <bit>
#include <cmath>

#include "check.h"
#include "dlsim/histogram.h"
#include "double_double.h"

namespace dlsim {
namespace {

// Returns the sum of squares of a bin in float64, rounded once.
double SquaresOf(const HistogramBin& bin, std::span<const uint32_t> edges) {
  const int exponent = 2 * QuantumExponent(edges[bin.bin]);
  const double high = static_cast<double>(static_cast<uint64_t>(bin.squares >> 64));
  const double low = static_cast<double>(static_cast<uint64_t>(bin.squares));
  return std::ldexp(high, exponent + 64) + std::ldexp(low, exponent);
}

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

Histogram MergeHistograms(const Histogram& a, const Histogram& b) {
  Histogram merged = {a.elements + b.elements, a.zeros + b.zeros, a.nan + b.nan,
                      a.inf + b.inf,           a.sum + b.sum,     {}};
  for (size_t s = 0; s < merged.signs.size(); ++s) {
    merged.signs[s] = MergeSigns(a.signs[s], b.signs[s]);
  }
  return merged;
}

HistogramIndex::HistogramIndex(const Histogram& histogram, const HistogramEdges& edges)
    : histogram_(&histogram), edges_(&edges) {
  for (size_t s = 0; s < signs_.size(); ++s) {
    const std::vector<HistogramBin>& bins = histogram.signs[s].bins;
    OfSign& into = signs_[s];
    into.bins.reserve(bins.size());
    into.counts.reserve(bins.size() + 1);
    into.squares.reserve(bins.size() + 1);
    uint64_t count = 0;
    DoubleDouble squares;
    into.counts.push_back(0);
    into.squares.push_back(0);
    for (const HistogramBin& bin : bins) {
      count += bin.count;
      squares.Add(SquaresOf(bin, edges.bits()));
      into.bins.push_back(bin.bin);
      into.counts.push_back(count);
      into.squares.push_back(squares.Value());
    }
  }
}

HistogramIndex::Below HistogramIndex::At(Sign sign, uint32_t threshold) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  const size_t all = of_sign.bins.size();
  size_t low = all, high = all;
  if (threshold <= histogram_->Of(sign).largest) {
    const uint32_t bin = static_cast<uint32_t>(threshold == 0 ? 0 : edges_->BinOf(threshold));
    const auto first = std::lower_bound(of_sign.bins.begin(), of_sign.bins.end(), bin);
    low = high = static_cast<size_t>(first - of_sign.bins.begin());
    const bool inside = threshold > edges_->bits()[bin];
    if (inside && first != of_sign.bins.end() && *first == bin) ++high;
  }
  return {{of_sign.counts[low], of_sign.counts[high]},
          {of_sign.squares[low], of_sign.squares[high]}};
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
  for (const Sign sign : {Sign::kPositive, Sign::kNegative}) {
    input.sum_of_squares += index.At(sign, codec::kInfinityBits).squares.low;
  }
  return input;
}

}  // namespace dlsim
