// SPDX-License-Identifier: Apache-2.0
// A histogram made ready for questions about magnitudes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dlsim/histogram.h"
#include "dlsim/tensor_stats.h"

namespace dlsim {

// Returns the sum of squares of a bin in float64, rounded once.
double SquaresOf(const HistogramBin& bin, const HistogramEdges& edges);

// Where a threshold lies among the bins of edges.
struct EdgePlace {
  uint32_t threshold = 0;
  uint32_t bin = 0;
  bool inside = false;  // above the lower edge of the bin, so that its values are on both sides
};

EdgePlace PlaceOf(uint32_t threshold, const HistogramEdges& edges);

// A histogram prepared for questions.
class HistogramIndex {
 public:
  // kSparse takes little room, and a binary search for each look-up; kDense has sums for every bin
  // of the edges, for very many look-ups.
  enum class Layout : uint8_t { kSparse, kDense };

  explicit HistogramIndex(Layout layout) : layout_(layout) {}
  HistogramIndex(const Histogram& histogram, const HistogramEdges& edges)
      : layout_(Layout::kSparse) {
    Set(histogram, edges);
  }

  // Takes a histogram; both must live as long as questions are asked.
  void Set(const Histogram& histogram, const HistogramEdges& edges);

  // The number of nonzero values of a sign whose magnitude is below a threshold, and the sum of
  // their squares, computed in float64 with the rounding error of one operation. Exact if the
  // threshold is an edge, or if no value is near.
  struct Below {
    Bracket<uint64_t> count;
    Bracket<double> squares;
  };
  Below At(Sign sign, const EdgePlace& place) const;
  Below At(Sign sign, uint32_t threshold) const;
  Below All(Sign sign) const { return signs_[static_cast<size_t>(sign)].Up(); }

  const Histogram& histogram() const { return *histogram_; }

 private:
  struct OfSign {
    std::vector<uint32_t> bins;    // of a sparse index
    std::vector<uint64_t> counts;  // below each bin; one more than bins
    std::vector<double> squares;

    Below Up() const { return {{counts.back(), counts.back()}, {squares.back(), squares.back()}}; }
  };
  void FillSparse(const SignHistogram& histogram, OfSign& into) const;
  void FillDense(const SignHistogram& histogram, OfSign& into) const;

  Layout layout_;
  const Histogram* histogram_ = nullptr;
  const HistogramEdges* edges_ = nullptr;
  std::array<OfSign, 2> signs_;
};

// Returns what is known of the input alone; nothing of the output.
TensorStats InputOf(const HistogramIndex& index);

}  // namespace dlsim
