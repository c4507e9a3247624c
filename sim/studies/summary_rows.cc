// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/summary_rows.h"

#include <fmt/format.h>

#include <span>

#include "sim/base/csv_field.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// The smallest, the median and the largest exponent; empty without finite nonzero values.
std::string ExponentColumns(const TensorSummary& summary) {
  const std::optional<int> median = MedianExponent(summary);
  if (!median) return ",,";
  int lowest = kLowestExponent, highest = kHighestExponent;
  const auto count = [&](int exponent) {
    return summary.exponents[static_cast<size_t>(exponent - kLowestExponent)];
  };
  while (count(lowest) == 0) ++lowest;
  while (count(highest) == 0) --highest;
  return fmt::format("{},{},{}", lowest, *median, highest);
}

Json JsonExponents(const ExponentCounts& counts) {
  Json pairs = Json::array();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) pairs.push_back({kLowestExponent + static_cast<int>(i), counts[i]});
  }
  return pairs;
}

Json JsonBuckets(std::span<const uint64_t> counts) {
  Json pairs = Json::array();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) pairs.push_back({TensorflowBucketLimits()[i], counts[i]});
  }
  return pairs;
}

}  // namespace

std::string SummaryCsvHeader() {
  return "step,micro,tensor,role,elements,sparsity,denormal_fraction,norm,zeros,denormals,nan,inf,"
         "lowest_exponent,median_exponent,highest_exponent\n";
}

std::string SummaryCsvRow(const SummaryRow& row) {
  const TensorSummary& summary = row.summary;
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", row.step,
                     row.micro < 0 ? std::string() : std::to_string(row.micro),
                     CsvField(row.tensor.name), NameOf(row.tensor.role), summary.elements,
                     summary.sparsity(), summary.denormal_fraction(),
                     WithoutNanSign(summary.norm()), summary.zeros, summary.denormals, summary.nan,
                     summary.inf, ExponentColumns(summary));
}

void AddSummary(const TensorSummary& summary, Json& object) {
  object["elements"] = summary.elements;
  object["zeros"] = summary.zeros;
  object["denormals"] = summary.denormals;
  object["nan"] = summary.nan;
  object["inf"] = summary.inf;
  object["sparsity"] = summary.sparsity();
  object["denormal_fraction"] = summary.denormal_fraction();
  object["histogram"] = JsonExponents(summary.exponents);
  if (!summary.tensorflow.empty()) {
    object["tensorflow_histogram"] = JsonBuckets(summary.tensorflow);
  }
}

Json SummaryJson(const SummaryRow& row) {
  Json object;
  object["step"] = row.step;
  object["micro"] = row.micro < 0 ? Json() : Json(row.micro);
  object["tensor"] = row.tensor.name;
  object["role"] = NameOf(row.tensor.role);
  object["norm"] = JsonNumber(row.summary.norm());
  AddSummary(row.summary, object);
  return object;
}

}  // namespace dlsim::sim
