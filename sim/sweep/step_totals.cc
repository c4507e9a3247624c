// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/step_totals.h"

#include <utility>

namespace dlsim::sim {
namespace {

void Add(const CheckedPart& from, CheckedPart& into) {
  into.values = MergeHistograms(into.values, from.values);
  into.squares += from.squares;
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
  CheckedPart part = {{histogram.elements, histogram.zeros, histogram.nan, histogram.inf, 0, {}},
                      0};
  for (const Sign sign : kSigns) {
    part.values.Of(sign).largest = histogram.Of(sign).largest;
    for (const HistogramBin& bin : histogram.Of(sign).bins) part.squares += SquaresOf(bin, *edges_);
  }
  return part;
}

}  // namespace dlsim::sim
