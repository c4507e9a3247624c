// SPDX-License-Identifier: Apache-2.0
// The summary of one tensor in one recording as a row of CSV and as JSON (docs/summaries.md).
#pragma once

#include <string>

#include "sim/base/json_value.h"
#include "src/summaries/summaries.h"

namespace dlsim::sim {

struct SummaryRow {
  int64_t step = 0;
  int64_t micro = -1;  // -1 = the step has none
  const TraceTensor& tensor;
  const TensorSummary& summary;
};

// The first line, with its line end.
std::string SummaryCsvHeader();

std::string SummaryCsvRow(const SummaryRow& row);
Json SummaryJson(const SummaryRow& row);

// Adds counts, shares and histograms to an object.
void AddSummary(const TensorSummary& summary, Json& object);

}  // namespace dlsim::sim
