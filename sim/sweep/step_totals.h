// SPDX-License-Identifier: Apache-2.0
// The totals of one step, prepared for very many questions: each takes a few look-ups.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/replay.h"
#include "src/histogram/histogram_index.h"

namespace dlsim::sim {

// What decides about finiteness, of one part of a step.
struct CheckedPart {
  Histogram values;    // without bins
  double squares = 0;  // sum over the finite elements
};

class StepTotals {
 public:
  explicit StepTotals(Checked checked) : checked_(checked) {}
  StepTotals(const StepTotals&) = delete;
  StepTotals& operator=(const StepTotals&) = delete;

  // Takes the next step; its edges must live as long.
  void Set(ProfileTotals totals, const HistogramEdges& edges);

  // The parameter gradients over all parts.
  const TensorStats& gradients() const { return input_; }
  const HistogramIndex& index() const { return index_; }

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
  CheckedPart PartOf(const Histogram& histogram) const;

  Checked checked_;
  const HistogramEdges* edges_ = nullptr;
  ProfileTotals totals_;
  Histogram merged_;  // of several parts
  HistogramIndex index_{HistogramIndex::Layout::kDense};
  TensorStats input_;
  std::vector<CheckedPart> parts_;
  CheckedPart whole_;
};

}  // namespace dlsim::sim
