// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
#include "sim/replay/report.h"
#include "sim/studies/accumulation_output.h"

namespace dlsim::sim {
namespace {

// One result as one run saw it.
struct Seen {
  const SumResult* result = nullptr;
  const SumSummary* summary = nullptr;
};

std::string Swamped(const AdditionCounts& counts) {
  if (counts.swamped == 0) return "0";
  return Percent(static_cast<double>(counts.swamped) / static_cast<double>(counts.additions));
}

std::string ErrorText(double error) { return error == 0 ? "0" : fmt::format("{:.2e}", error); }

std::string TensorText(const SumResult& result) {
  return Printable(result.tensor) + (result.other.empty() ? "" : " : " + Printable(result.other));
}

std::string StepText(const SumSummary& summary) {
  if (summary.worst_step < 0) return "-";
  return summary.worst_micro < 0 ? std::to_string(summary.worst_step)
                                 : fmt::format("{}.{}", summary.worst_step, summary.worst_micro);
}

// The results of a run, the worst first and those without an error last.
std::vector<Seen> WorstFirst(std::span<const SumResult> results, size_t run) {
  std::vector<Seen> seen;
  for (const SumResult& result : results) seen.push_back({&result, &result.runs[run]});
  std::ranges::stable_sort(seen, [](const Seen& a, const Seen& b) {
    const bool has_a = a.summary->worst_step >= 0, has_b = b.summary->worst_step >= 0;
    return has_a != has_b ? has_a : a.summary->worst_error > b.summary->worst_error;
  });
  return seen;
}

std::vector<std::string> ReductionsOf(std::span<const SumResult> results) {
  std::vector<std::string> names;
  for (const SumResult& result : results) {
    if (std::ranges::find(names, result.reduction) == names.end()) {
      names.push_back(result.reduction);
    }
  }
  return names;
}

TableRow OverviewRow(const std::string& run, const std::string& reduction,
                     std::span<const Seen> worst_first) {
  AdditionCounts counts;
  double error_sum = 0;
  uint64_t sums = 0, with_error = 0, overflowed = 0;
  for (const Seen& seen : worst_first) {
    counts.Merge(seen.summary->counts);
    sums += seen.summary->sums;
    overflowed += seen.summary->overflowed;
    with_error += seen.summary->sums - seen.summary->nonfinite - seen.summary->overflowed;
    error_sum += seen.summary->error_sum;
  }
  const Seen& worst = worst_first.front();
  const double mean = with_error == 0 ? 0 : error_sum / static_cast<double>(with_error);
  return {run,
          reduction,
          std::to_string(sums),
          ErrorText(worst.summary->worst_error),
          ErrorText(worst.summary->input_error),
          ErrorText(mean),
          ErrorText(worst.summary->relative_error),
          Swamped(counts),
          std::to_string(overflowed),
          TensorText(*worst.result)};
}

std::string Overview(std::span<const SumRun> runs, std::span<const SumResult> results) {
  std::vector<TableRow> rows = {{"run", "sum", "sums", "worst error", "of inputs", "mean error",
                                 "relative", "swamped", "overflowed", "worst tensor"}};
  for (const std::string& reduction : ReductionsOf(results)) {
    for (size_t r = 0; r < runs.size(); ++r) {
      std::vector<Seen> seen = WorstFirst(results, r);
      std::erase_if(seen, [&](const Seen& s) { return s.result->reduction != reduction; });
      rows.push_back(OverviewRow(runs[r].name, reduction, seen));
    }
  }
  constexpr std::string_view kDispensable[] = {"of inputs", "relative", "sums", "overflowed",
                                               "mean error"};
  return FormatTable(rows, kDispensable);
}

std::string WorstOfRun(const SumRun& run, std::span<const Seen> worst_first, uint64_t top) {
  std::vector<TableRow> rows = {{"worst of " + run.name, "sum", "error", "of inputs", "mean error",
                                 "relative", "swamped", "overflowed", "at step"}};
  for (const Seen& seen : worst_first.first(std::min<uint64_t>(top, worst_first.size()))) {
    const SumSummary& s = *seen.summary;
    rows.push_back({TensorText(*seen.result), seen.result->reduction, ErrorText(s.worst_error),
                    ErrorText(s.input_error), ErrorText(s.mean_error()),
                    ErrorText(s.relative_error), Swamped(s.counts), std::to_string(s.overflowed),
                    StepText(s)});
  }
  constexpr std::string_view kDispensable[] = {"of inputs", "relative", "overflowed", "mean error"};
  return FormatTable(rows, kDispensable);
}

}  // namespace

std::string FormatSumReport(const SourceFacts& facts, std::span<const SumRun> runs,
                            std::span<const SumResult> results, uint64_t top) {
  std::string text = DescribeTrace(facts);
  text += Wrap(
      "emulated sums against float64; an error is the difference over the sum of the terms' "
      "magnitudes (\"relative\": over the sum, which may cancel); vectors by their L2 norms");
  uint64_t nonfinite = 0;
  for (const SumResult& result : results) nonfinite += result.runs.front().nonfinite;
  if (nonfinite > 0) {
    text += fmt::format("note: {} a float64 result that is not finite, and no error\n",
                        Counted(nonfinite, "sum") + (nonfinite == 1 ? " has" : " have"));
  }
  text += "\n" + Overview(runs, results);
  for (size_t r = 0; r < runs.size() && top > 0; ++r) {
    text += "\n" + WorstOfRun(runs[r], WorstFirst(results, r), top);
  }
  return text;
}

}  // namespace dlsim::sim
