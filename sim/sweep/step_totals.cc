// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/step_totals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "double_double.h"

namespace dlsim {
namespace {

constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// A sum of squares of significands in float64, rounded once.
double SquaresOfBin(const HistogramBin& bin, double unit) {
  const double high = static_cast<double>(static_cast<uint64_t>(bin.squares >> 64));
  const double low = static_cast<double>(static_cast<uint64_t>(bin.squares));
  return (high * 0x1p64 + low) * unit;
}

Histogram Merged(const std::vector<Histogram>& parts) {
  Histogram merged = parts.front();
  for (size_t p = 1; p < parts.size(); ++p) merged = MergeHistograms(merged, parts[p]);
  return merged;
}

void Add(const CheckedPart& from, CheckedPart& into) {
  into.elements += from.elements;
  into.zeros += from.zeros;
  into.nan += from.nan;
  into.inf += from.inf;
  into.squares += from.squares;
  for (size_t s = 0; s < into.largest.size(); ++s) {
    into.largest[s] = std::max(into.largest[s], from.largest[s]);
  }
}

}  // namespace

EdgePlace PlaceOf(uint32_t threshold, const HistogramEdges& edges) {
  const uint32_t magnitude = std::max(threshold, 1u);
  if (magnitude >= codec::kInfinityBits) {
    return {codec::kInfinityBits, static_cast<uint32_t>(edges.bin_count()), false};
  }
  const size_t bin = edges.BinOf(magnitude);
  return {magnitude, static_cast<uint32_t>(bin), magnitude > edges.bits()[bin]};
}

void StepTotals::SetEdges(const HistogramEdges& edges) {
  edges_ = &edges;
  units_.clear();
  for (size_t b = 0; b < edges.bin_count(); ++b) {
    units_.push_back(std::ldexp(1.0, 2 * QuantumExponent(edges.bits()[b])));
  }
}

void StepTotals::Set(ProfileTotals totals) {
  totals_ = std::move(totals);
  const bool one_part = totals_.gradients.size() == 1;
  SumBelow(one_part ? totals_.gradients.front() : Merged(totals_.gradients));
  SetChecked();
}

void StepTotals::SumBelow(const Histogram& histogram) {
  const size_t bins = edges_->bin_count();
  double squares_of_signs = 0;
  uint32_t largest = 0;
  for (const Sign sign : kSigns) {
    OfSign& into = signs_[static_cast<size_t>(sign)];
    into.counts.resize(bins + 1);
    into.squares.resize(bins + 1);
    size_t next = 0;
    uint64_t count = 0;
    DoubleDouble squares;
    const auto fill = [&](size_t end) {
      const auto from = static_cast<std::ptrdiff_t>(next), to = static_cast<std::ptrdiff_t>(end);
      std::fill(into.counts.begin() + from, into.counts.begin() + to, count);
      std::fill(into.squares.begin() + from, into.squares.begin() + to, squares.Value());
      next = end;
    };
    for (const HistogramBin& bin : histogram.Of(sign).bins) {
      fill(size_t{bin.bin} + 1);
      count += bin.count;
      squares.Add(SquaresOfBin(bin, units_[bin.bin]));
    }
    fill(bins + 1);
    into.largest = histogram.Of(sign).largest;
    largest = std::max(largest, into.largest);
    squares_of_signs += squares.Value();
  }
  gradients_ = {};
  gradients_.elements = histogram.elements;
  gradients_.zeros = histogram.zeros;
  gradients_.nan = histogram.nan;
  gradients_.inf = histogram.inf;
  gradients_.absmax = std::bit_cast<float>(largest);
  gradients_.sum_of_squares = squares_of_signs;
}

CheckedPart StepTotals::PartOf(const Histogram& histogram) const {
  CheckedPart part = {histogram.elements, histogram.zeros, histogram.nan, histogram.inf, {}, 0};
  for (size_t s = 0; s < part.largest.size(); ++s) {
    part.largest[s] = histogram.signs[s].largest;
    for (const HistogramBin& bin : histogram.signs[s].bins) {
      part.squares += SquaresOfBin(bin, units_[bin.bin]);
    }
  }
  return part;
}

void StepTotals::SetChecked() {
  parts_.clear();
  whole_ = {};
  for (size_t p = 0; p < totals_.gradients.size(); ++p) {
    CheckedPart part = PartOf(totals_.gradients[p]);
    if (checked_ == Checked::kAllGradients) Add(PartOf(totals_.activations[p]), part);
    Add(part, whole_);
    parts_.push_back(part);
  }
}

Bracket<uint64_t> StepTotals::CountBelow(Sign sign, const EdgePlace& place) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  if (place.threshold > of_sign.largest) return {of_sign.counts.back(), of_sign.counts.back()};
  return {of_sign.counts[place.bin], of_sign.counts[place.bin + (place.inside ? 1 : 0)]};
}

Bracket<double> StepTotals::SquaresBelow(Sign sign, const EdgePlace& place) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  if (place.threshold > of_sign.largest) return {of_sign.squares.back(), of_sign.squares.back()};
  return {of_sign.squares[place.bin], of_sign.squares[place.bin + (place.inside ? 1 : 0)]};
}

}  // namespace dlsim
