// SPDX-License-Identifier: Apache-2.0
// The totals of one step, prepared for very many questions: each takes a few look-ups.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dlsim/histogram.h"
#include "dlsim/profile.h"
#include "dlsim/replay.h"

namespace dlsim {

// Where a threshold lies among the bins of edges.
struct EdgePlace {
  uint32_t threshold = 0;
  uint32_t bin = 0;
  bool inside = false;  // above the lower edge of the bin, so that its values are on both sides
};

EdgePlace PlaceOf(uint32_t threshold, const HistogramEdges& edges);

// What decides about finiteness, of one part of a step.
struct CheckedPart {
  uint64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  std::array<uint32_t, 2> largest = {};  // magnitude bits, by sign
  double squares = 0;                    // sum over the finite elements
};

class StepTotals {
 public:
  explicit StepTotals(Checked checked) : checked_(checked) {}

  // The edges of the steps to come; they must live as long.
  void SetEdges(const HistogramEdges& edges);

  // Takes the next step.
  void Set(ProfileTotals totals);

  // The parameter gradients over all parts.
  const TensorStats& gradients() const { return gradients_; }
  Bracket<uint64_t> CountBelow(Sign sign, const EdgePlace& place) const;
  Bracket<double> SquaresBelow(Sign sign, const EdgePlace& place) const;
  uint64_t Count(Sign sign) const { return signs_[static_cast<size_t>(sign)].counts.back(); }

  // The gradients that decide, per part and over all parts.
  const std::vector<CheckedPart>& parts() const { return parts_; }
  const CheckedPart& whole() const { return whole_; }

  // Calls visit(histogram) for each histogram that decides.
  template <class Visit>
  void ForEachChecked(const Visit& visit) const {
    for (const Histogram& histogram : totals_.gradients) visit(histogram);
    if (checked_ != Checked::kAllGradients) return;
    for (const Histogram& histogram : totals_.activations) visit(histogram);
  }
  const HistogramEdges& edges() const { return *edges_; }

 private:
  struct OfSign {
    uint32_t largest = 0;
    std::vector<uint64_t> counts;  // below each edge
    std::vector<double> squares;
  };
  void SumBelow(const Histogram& histogram);
  void SetChecked();
  CheckedPart PartOf(const Histogram& histogram) const;

  Checked checked_;
  const HistogramEdges* edges_ = nullptr;
  std::vector<double> units_;  // per bin: what a square of significands counts in
  ProfileTotals totals_;
  TensorStats gradients_;
  std::array<OfSign, 2> signs_;
  std::vector<CheckedPart> parts_;
  CheckedPart whole_;
};

}  // namespace dlsim
