// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/comparison_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

std::string Change(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

std::string TimeText(double nanoseconds) {
  if (nanoseconds < 1e3) return fmt::format("{:.1f} ns", nanoseconds);
  if (nanoseconds < 1e6) return fmt::format("{:.2f} us", nanoseconds / 1e3);
  return fmt::format("{:.2f} ms", nanoseconds / 1e6);
}

std::string RateText(double bytes_per_second) {
  return bytes_per_second > 0 ? fmt::format("{:.1f}", bytes_per_second / 1e9) : "-";
}

std::string ShareText(double fraction) {
  return fraction > 0 ? fmt::format("{:.0f} %", 100 * fraction) : "-";
}

std::vector<TableRow> TimeRows(const Comparison& comparison) {
  std::vector<TableRow> rows = {{"kernel", "verdict", "median", "shortest", "P(slower)", "p",
                                 "base", "new", "GB/s", "of stream", ""}};
  for (const KernelComparison& kernel : comparison.kernels) {
    rows.push_back({Printable(kernel.name), std::string(NameOf(kernel.verdict)),
                    Change(kernel.median_ratio), Change(kernel.min_ratio),
                    fmt::format("{:.2f}", kernel.rank.superiority),
                    fmt::format("{:.2g}", kernel.corrected_p), TimeText(kernel.base.median),
                    TimeText(kernel.current.median), RateText(kernel.current.bytes_per_second),
                    ShareText(kernel.current.fraction_of_stream), kernel.reason});
  }
  return rows;
}

std::vector<TableRow> InstructionRows(const Comparison& comparison) {
  std::vector<TableRow> rows = {{"kernel", "verdict", "change", "base", "new"}};
  for (const KernelComparison& kernel : comparison.kernels) {
    rows.push_back({Printable(kernel.name), std::string(NameOf(kernel.verdict)),
                    fmt::format("{:+.2f} %", 100 * (kernel.median_ratio - 1)),
                    fmt::format("{:.0f}", kernel.base.median),
                    fmt::format("{:.0f}", kernel.current.median)});
  }
  return rows;
}

std::string DescribeFile(const char* role, const BenchmarkFile& file) {
  std::string text = fmt::format("{:<5}{}", role, file.place);
  for (const char* const field : {"cpu_model", "simd_target", "gpu"}) {
    const auto found = file.identity.find(field);
    if (found != file.identity.end()) text += ", " + Printable(found->second);
  }
  if (file.kind == BenchKind::kTime && !file.processes.empty()) {
    text += fmt::format(", {} processes", Printable(file.processes));
  }
  return text + "\n";
}

std::string ListOnly(const char* where, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += fmt::format("  only in {}: {}\n", where, Printable(name));
  return text;
}

Json SampleJson(BenchKind kind, const SampleSummary& sample) {
  const std::string unit = kind == BenchKind::kTime ? "_ns" : "_instructions";
  Json object = {{"repetitions", sample.count},
                 {"median" + unit, sample.median},
                 {"min" + unit, sample.min},
                 {"relative_interquartile_range", sample.spread}};
  if (sample.bytes_per_second > 0) object["bytes_per_second"] = sample.bytes_per_second;
  if (sample.fraction_of_stream > 0) object["fraction_of_stream"] = sample.fraction_of_stream;
  return object;
}

Json KernelJson(BenchKind kind, const KernelComparison& kernel) {
  Json object = {{"name", kernel.name}, {"verdict", NameOf(kernel.verdict)}};
  if (!kernel.reason.empty()) object["reason"] = kernel.reason;
  object["median_ratio"] = kernel.median_ratio;
  object["min_ratio"] = kernel.min_ratio;
  if (kind == BenchKind::kTime) {
    object["probability_slower"] = kernel.rank.superiority;
    object["u"] = kernel.rank.u;
    object["p"] = kernel.rank.p;
    object["p_holm"] = kernel.corrected_p;
  }
  object["base"] = SampleJson(kind, kernel.base);
  object["new"] = SampleJson(kind, kernel.current);
  return object;
}

Json FileJson(const BenchmarkFile& file) {
  Json object = {{"file", file.place}};
  for (const auto& [field, value] : file.identity) object[field] = value;
  return object;
}

constexpr BenchVerdict kVerdicts[] = {BenchVerdict::kSlower, BenchVerdict::kInconclusive,
                                      BenchVerdict::kFaster, BenchVerdict::kSame};

}  // namespace

std::string FormatComparison(const BenchmarkFile& base, const BenchmarkFile& current,
                             const Comparison& comparison) {
  const bool is_time = comparison.kind == BenchKind::kTime;
  std::string text =
      DescribeFile("base", base) + DescribeFile("new", current) + DescribeRule(comparison) + "\n" +
      FormatTable(is_time ? TimeRows(comparison) : InstructionRows(comparison)) +
      ListOnly("base", comparison.only_in_base) + ListOnly("new", comparison.only_in_current);
  const size_t count = comparison.JudgedCount();
  text += fmt::format("\n{} kernel{} compared:", count, count == 1 ? "" : "s");
  for (const BenchVerdict verdict : kVerdicts) {
    text += fmt::format("{} {} {}", verdict == BenchVerdict::kSlower ? "" : ",",
                        comparison.Count(verdict), NameOf(verdict));
  }
  const size_t references = comparison.kernels.size() - count;
  if (references > 0) text += fmt::format("; {} limits and peers unjudged", references);
  return text + "\n";
}

Json ComparisonJson(const BenchmarkFile& base, const BenchmarkFile& current,
                    const Comparison& comparison) {
  Json document = {{"schema", "dlsim.bench.compare/1"}, {"kind", NameOf(comparison.kind)}};
  document["base"] = FileJson(base);
  document["new"] = FileJson(current);
  document["rule"] = {{"threshold", comparison.rule.threshold},
                      {"alpha", comparison.rule.alpha},
                      {"min_repetitions", kMinRepetitions},
                      {"text", DescribeRule(comparison)}};
  for (const BenchVerdict verdict : kVerdicts) {
    document["summary"][NameOf(verdict)] = comparison.Count(verdict);
  }
  document["summary"]["unjudged"] = comparison.Count(BenchVerdict::kUnjudged);
  document["kernels"] = Json::array();
  for (const KernelComparison& kernel : comparison.kernels) {
    document["kernels"].push_back(KernelJson(comparison.kind, kernel));
  }
  document["only_in_base"] = comparison.only_in_base;
  document["only_in_new"] = comparison.only_in_current;
  return document;
}

}  // namespace dlsim::sim
