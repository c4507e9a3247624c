// SPDX-License-Identifier: Apache-2.0
// The summaries of a trace added up over its recordings, and as a readable table.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/studies/summary_rows.h"
#include "src/summaries/summaries.h"

namespace dlsim::sim {

// One tensor over all recordings that have it.
struct SummaryTotal {
  std::string name;
  Role role = Role::kGrad;
  uint64_t recordings = 0;
  TensorSummary summary;
  double worst_denormal_fraction = 0;  // in one recording
  int64_t worst_step = 0;              // the first with that
  double largest_norm = 0;             // of one recording; NaN counts as the largest
};

class SummaryTotals {
 public:
  void Add(const SummaryRow& row);

  // In the order in which the tensors came first.
  std::span<const SummaryTotal> totals() const { return totals_; }

 private:
  std::vector<SummaryTotal> totals_;
  std::map<std::string, size_t> index_;
};

Json SummaryTotalJson(const SummaryTotal& total);

// Returns the shares of finite nonzero values per two exponents from -40 to 19 as one character
// each, between what is below and what is above.
std::string HistogramBar(const TensorSummary& summary);

// Returns a table of the `top` tensors with the largest share of denormals, the worst first.
std::string FormatSummaries(std::span<const SummaryTotal> totals, size_t top);

}  // namespace dlsim::sim
