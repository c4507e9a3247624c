// SPDX-License-Identifier: Apache-2.0
// Two results of the same benchmarks: which kernels became slower or faster, by a stated rule.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/bench/benchmark_file.h"
#include "sim/bench/rank_test.h"

namespace dlsim::sim {

// Below this number of repetitions no two samples can differ significantly: the smallest p value of
// 5 + 5 is 2 / C(10, 5) = 0.008, before any correction.
inline constexpr size_t kMinRepetitions = 6;

struct ComparisonRule {
  double threshold = 0.05;  // relative change of the median that matters
  double alpha = 0.01;      // of the rank test, corrected over all kernels compared
};

// In the order of severity.
enum class BenchVerdict { kSlower, kInconclusive, kFaster, kSame, kUnjudged };

constexpr auto EnumNames(BenchVerdict) {
  return std::to_array<EnumName<BenchVerdict>>({{BenchVerdict::kSlower, "slower"},
                                                {BenchVerdict::kInconclusive, "inconclusive"},
                                                {BenchVerdict::kFaster, "faster"},
                                                {BenchVerdict::kSame, "same"},
                                                {BenchVerdict::kUnjudged, "unjudged"}});
}

// What the repetitions of one kernel in one file say. Rates are medians, 0 where not recorded.
struct SampleSummary {
  size_t count = 0;
  double median = 0, min = 0;
  double spread = 0;  // interquartile range / median; 0 below three repetitions
  double bytes_per_second = 0, fraction_of_stream = 0;
};

struct KernelComparison {
  std::string name;
  BenchVerdict verdict = BenchVerdict::kSame;  // kUnjudged for limits and peers
  std::string reason;                          // of an inconclusive verdict
  SampleSummary base, current;
  double median_ratio = 1, min_ratio = 1;  // current / base: above 1 is slower
  RankTest rank;                           // superiority: the probability that current is slower
  double corrected_p = 1;
};

struct Comparison {
  BenchKind kind = BenchKind::kTime;
  ComparisonRule rule;
  std::vector<KernelComparison> kernels;  // worst first
  std::vector<std::string> only_in_base, only_in_current;

  size_t Count(BenchVerdict verdict) const;
  size_t JudgedCount() const { return kernels.size() - Count(BenchVerdict::kUnjudged); }
};

// Compares the kernels of both files whose name `is_chosen`. Throws Error (exit code 4) if the
// files are not comparable or have no kernel in common.
Comparison Compare(const BenchmarkFile& base, const BenchmarkFile& current,
                   const ComparisonRule& rule,
                   const std::function<bool(const std::string&)>& is_chosen);

// Returns the rule in words, one condition per line.
std::string DescribeRule(const Comparison& comparison);

// Returns twice the standard error of the ratio of medians, estimated from the quartiles.
double DetectableChange(const SampleSummary& base, const SampleSummary& current);

}  // namespace dlsim::sim
