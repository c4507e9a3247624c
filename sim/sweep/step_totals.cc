// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/step_totals.h"

#include <algorithm>
#include <utility>

namespace dlsim::sim {
namespace {

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

void StepTotals::Set(ProfileTotals totals, const HistogramEdges& edges) {
  edges_ = &edges;
  totals_ = std::move(totals);
  const std::vector<Histogram>& gradients = totals_.gradients;
  if (gradients.size() > 1) {
    merged_ = gradients.front();
    for (size_t p = 1; p < gradients.size(); ++p) merged_ = MergeHistograms(merged_, gradients[p]);
  }
  index_.Set(gradients.size() > 1 ? merged_ : gradients.front(), edges);
  input_ = InputOf(index_);
  parts_.clear();
  whole_ = {};
  for (size_t p = 0; p < gradients.size(); ++p) {
    CheckedPart part = PartOf(gradients[p]);
    if (checked_ == Checked::kAllGradients) Add(PartOf(totals_.activations[p]), part);
    Add(part, whole_);
    parts_.push_back(part);
  }
}

CheckedPart StepTotals::PartOf(const Histogram& histogram) const {
  CheckedPart part = {histogram.elements, histogram.zeros, histogram.nan, histogram.inf, {}, 0};
  for (size_t s = 0; s < part.largest.size(); ++s) {
    part.largest[s] = histogram.signs[s].largest;
    for (const HistogramBin& bin : histogram.signs[s].bins) {
      part.squares += SquaresOf(bin, *edges_);
    }
  }
  return part;
}

}  // namespace dlsim::sim
