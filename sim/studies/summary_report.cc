// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/summary_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/report.h"

namespace dlsim::sim {
namespace {

constexpr int kFirstExponent = -40;
constexpr int kEndExponent = 20;
constexpr size_t kExponentsPerCell = 2;
constexpr size_t kCells = (kEndExponent - kFirstExponent) / kExponentsPerCell;

// Each mark stands for at least a quarter of the share of the next one; '@' for 1/4 and more.
constexpr std::string_view kMarks = "@#*+=-:.";

char MarkOf(uint64_t count, uint64_t total) {
  if (count == 0) return ' ';
  double bound = static_cast<double>(total);
  for (const char mark : kMarks.substr(0, kMarks.size() - 1)) {
    bound /= 4;
    if (static_cast<double>(count) >= bound) return mark;
  }
  return kMarks.back();
}

// Exponents above their cells: each label begins where its cell does.
std::string BarRuler() {
  std::string ruler(kCells + 4, ' ');
  for (int exponent = kFirstExponent; exponent < kEndExponent; exponent += 20) {
    const std::string label = ScaleText(std::exp2(exponent));
    const size_t cell = static_cast<size_t>(exponent - kFirstExponent) / kExponentsPerCell;
    ruler.replace(2 + cell, label.size(), label);
  }
  ruler.back() = '>';
  ruler.front() = '<';
  return ruler;
}

TableRow TotalRow(const SummaryTotal& total) {
  const TensorSummary& summary = total.summary;
  return {Printable(total.name),
          std::string(NameOf(total.role)),
          Percent(summary.sparsity()),
          Percent(summary.denormal_fraction()),
          Percent(total.worst_denormal_fraction),
          total.worst_denormal_fraction == 0 ? "-" : std::to_string(total.worst_step),
          fmt::format("{:.2e}", WithoutNanSign(total.largest_norm)),
          std::to_string(summary.nan + summary.inf),
          HistogramBar(summary)};
}

}  // namespace

void SummaryTotals::Add(const SummaryRow& row) {
  const auto [found, added] = index_.try_emplace(row.tensor.name, totals_.size());
  if (added) totals_.push_back({row.tensor.name, row.tensor.role, 0, {}});
  SummaryTotal& total = totals_[found->second];
  ++total.recordings;
  total.summary.Merge(row.summary);
  if (row.summary.denormal_fraction() > total.worst_denormal_fraction) {
    total.worst_denormal_fraction = row.summary.denormal_fraction();
    total.worst_step = row.step;
  }
  const double norm = row.summary.norm();
  if (std::isnan(norm) || norm > total.largest_norm) total.largest_norm = norm;
}

Json SummaryTotalJson(const SummaryTotal& total) {
  Json object;
  object["name"] = total.name;
  object["role"] = NameOf(total.role);
  object["recordings"] = total.recordings;
  object["largest_norm"] = JsonNumber(total.largest_norm);
  object["worst_denormal_fraction"] = total.worst_denormal_fraction;
  object["worst_step"] = total.worst_denormal_fraction == 0 ? Json() : Json(total.worst_step);
  AddSummary(total.summary, object);
  return object;
}

std::string HistogramBar(const TensorSummary& summary) {
  uint64_t below = 0, above = 0;
  std::array<uint64_t, kCells> cells{};
  for (size_t i = 0; i < summary.exponents.size(); ++i) {
    const int exponent = kLowestExponent + static_cast<int>(i);
    const uint64_t count = summary.exponents[i];
    if (exponent < kFirstExponent) {
      below += count;
    } else if (exponent >= kEndExponent) {
      above += count;
    } else {
      cells[static_cast<size_t>(exponent - kFirstExponent) / kExponentsPerCell] += count;
    }
  }
  const uint64_t total = summary.nonzero_finite();
  std::string bar = {MarkOf(below, total), '|'};
  for (const uint64_t count : cells) bar += MarkOf(count, total);
  return bar + '|' + MarkOf(above, total);
}

std::string FormatSummaries(std::span<const SummaryTotal> totals, size_t top) {
  std::vector<const SummaryTotal*> order;
  for (const SummaryTotal& total : totals) order.push_back(&total);
  std::stable_sort(order.begin(), order.end(), [](const SummaryTotal* a, const SummaryTotal* b) {
    return a->summary.denormal_fraction() > b->summary.denormal_fraction();
  });
  std::vector<TableRow> rows = {{"worst by denormals", "role", "sparsity", "denormal", "at worst",
                                 "step", "norm", "nonfinite", BarRuler()}};
  const size_t shown = std::min(top, order.size());
  for (size_t i = 0; i < shown; ++i) rows.push_back(TotalRow(*order[i]));
  constexpr std::string_view kDispensable[] = {"nonfinite", "norm", "step",
                                               "at worst",  "role", "sparsity"};
  return FormatTable(rows, kDispensable) + MoreRows(shown, order.size()) +
         "\n  sparsity, denormal: shares of all elements; at worst, norm: largest of one recording."
         "\n  Bar: share of finite nonzero values per two exponents, @ from 1/4, each of #*+=-: "
         "from"
         " a quarter\n  of that, . fewer; < below 2^-40, > from 2^20.\n";
}

}  // namespace dlsim::sim
