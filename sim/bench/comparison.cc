// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/statistics/univariate_statistics.hpp>
#include <cmath>
#include <span>
#include <unordered_map>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

namespace statistics = boost::math::statistics;

double Median(std::vector<double> values) {
  return values.empty() ? 0 : statistics::median(values);
}

SampleSummary Summarize(const KernelSamples& kernel) {
  std::vector<double> cost = kernel.cost;  // the library reorders what it is given
  SampleSummary summary;
  summary.count = cost.size();
  summary.median = Median(cost);
  summary.min = *std::ranges::min_element(cost);
  if (cost.size() >= 3) summary.spread = statistics::interquartile_range(cost) / summary.median;
  summary.bytes_per_second = Median(kernel.bytes_per_second);
  summary.fraction_of_stream = Median(kernel.fraction_of_stream);
  return summary;
}

bool IsUp(double ratio, double change) { return ratio > 1 + change; }
bool IsDown(double ratio, double change) { return ratio < 1 / (1 + change); }

// Counts do not vary: a change is a change.
void DecideInstructions(double threshold, KernelComparison& kernel) {
  if (IsUp(kernel.median_ratio, threshold)) kernel.verdict = BenchVerdict::kSlower;
  if (IsDown(kernel.median_ratio, threshold)) kernel.verdict = BenchVerdict::kFaster;
}

// Other programs stretch wall-clock time, which is all there is for several threads, but that of
// the stream beside the kernel, too: a change of the kernel changes its share. Nothing recorded,
// nothing to say against it.
bool ShareAgrees(const KernelComparison& kernel, double change, bool up) {
  const double before = kernel.base.fraction_of_stream, now = kernel.current.fraction_of_stream;
  if (ThreadsOf(kernel.name) == 1 || before <= 0 || now <= 0) return true;
  return up ? IsUp(before / now, change) : IsDown(before / now, change);
}

// Returns what speaks against a change of the median beyond the threshold; empty if nothing does.
std::string Objection(const ComparisonRule& rule, const KernelComparison& kernel, bool up) {
  const double change = rule.threshold / 2;
  if (kernel.corrected_p >= rule.alpha) return "not significant";
  if (!(up ? IsUp(kernel.min_ratio, change) : IsDown(kernel.min_ratio, change))) {
    return "the shortest did not move";
  }
  return ShareAgrees(kernel, change, up) ? "" : "so did the stream";
}

void DecideTime(const ComparisonRule& rule, KernelComparison& kernel) {
  const auto inconclusive = [&](std::string reason) {
    kernel.verdict = BenchVerdict::kInconclusive;
    kernel.reason = std::move(reason);
  };
  const size_t repetitions = std::min(kernel.base.count, kernel.current.count);
  if (repetitions < kMinRepetitions) {
    return inconclusive(fmt::format("{} repetition{}", repetitions, repetitions == 1 ? "" : "s"));
  }
  const bool up = IsUp(kernel.median_ratio, rule.threshold);
  if (up || IsDown(kernel.median_ratio, rule.threshold)) {
    const std::string objection = Objection(rule, kernel, up);
    if (!objection.empty()) return inconclusive(objection);
    kernel.verdict = up ? BenchVerdict::kSlower : BenchVerdict::kFaster;
    return;
  }
  const double detectable = DetectableChange(kernel.base, kernel.current);
  if (detectable > rule.threshold) {
    inconclusive(fmt::format("noise of {:.1f} %", 100 * detectable));
  }
}

KernelComparison CompareKernel(const KernelSamples& base, const KernelSamples& current) {
  KernelComparison kernel;
  kernel.name = base.name;
  if (!base.is_judged || !current.is_judged) kernel.verdict = BenchVerdict::kUnjudged;
  kernel.base = Summarize(base);
  kernel.current = Summarize(current);
  kernel.median_ratio = kernel.current.median / kernel.base.median;
  kernel.min_ratio = kernel.current.min / kernel.base.min;
  kernel.rank = MannWhitney(base.cost, current.cost);
  return kernel;
}

void Decide(Comparison& comparison) {
  std::vector<KernelComparison*> judged;
  std::vector<double> p;
  for (KernelComparison& kernel : comparison.kernels) {
    if (kernel.verdict == BenchVerdict::kUnjudged) continue;
    judged.push_back(&kernel);
    p.push_back(kernel.rank.p);
  }
  const std::vector<double> corrected = HolmCorrected(p);
  for (size_t i = 0; i < corrected.size(); ++i) {
    KernelComparison& kernel = *judged[i];
    kernel.corrected_p = corrected[i];
    if (comparison.kind == BenchKind::kInstructions) {
      DecideInstructions(comparison.rule.threshold, kernel);
    } else {
      DecideTime(comparison.rule, kernel);
    }
  }
}

bool IsWorse(const KernelComparison& a, const KernelComparison& b) {
  if (a.verdict != b.verdict) return a.verdict < b.verdict;
  return a.median_ratio > b.median_ratio;
}

}  // namespace

size_t Comparison::Count(BenchVerdict verdict) const {
  return static_cast<size_t>(
      std::ranges::count(kernels, verdict, [](const auto& kernel) { return kernel.verdict; }));
}

// The median of n values has the standard error sqrt(pi / 2) sigma / sqrt(n) for normal data, whose
// interquartile range is 1.349 sigma; quartiles do not see the rare long repetitions.
double DetectableChange(const SampleSummary& base, const SampleSummary& current) {
  constexpr double kErrorPerSpread = 1.2533 / 1.349;
  const auto variance = [](const SampleSummary& sample) {
    return sample.spread * sample.spread / static_cast<double>(sample.count);
  };
  return 2 * kErrorPerSpread * std::sqrt(variance(base) + variance(current));
}

Comparison Compare(const BenchmarkFile& base, const BenchmarkFile& current,
                   const ComparisonRule& rule,
                   const std::function<bool(const std::string&)>& is_chosen) {
  RequireComparable(base, current);
  Comparison comparison;
  comparison.kind = base.kind;
  comparison.rule = rule;
  std::unordered_map<std::string, const KernelSamples*> current_by_name;
  for (const KernelSamples& kernel : current.kernels) {
    if (is_chosen(kernel.name)) current_by_name[kernel.name] = &kernel;
  }
  for (const KernelSamples& kernel : base.kernels) {
    if (!is_chosen(kernel.name)) continue;
    const auto found = current_by_name.find(kernel.name);
    if (found == current_by_name.end()) {
      comparison.only_in_base.push_back(kernel.name);
      continue;
    }
    comparison.kernels.push_back(CompareKernel(kernel, *found->second));
    current_by_name.erase(found);
  }
  for (const KernelSamples& kernel : current.kernels) {
    if (current_by_name.contains(kernel.name)) comparison.only_in_current.push_back(kernel.name);
  }
  if (comparison.kernels.empty()) {
    throw Error(ErrorKind::kIncomparable, base.place + " and " + current.place,
                "no chosen kernel is in both");
  }
  Decide(comparison);
  std::ranges::stable_sort(comparison.kernels, IsWorse);
  return comparison;
}

std::string DescribeRule(const Comparison& comparison) {
  const double percent = 100 * comparison.rule.threshold;
  if (comparison.kind == BenchKind::kInstructions) {
    return fmt::format(
        "slower: more than {:g} % more instructions; faster: fewer by the same ratio; else same\n",
        percent);
  }
  return fmt::format(
      "slower: median time up by more than {:g} %, and p < {:g} (Mann-Whitney U, two-sided, Holm\n"
      "  over {} kernel{}), and shortest time up by more than {:g} %, and on several threads, "
      "whose\n"
      "  wall-clock time other programs stretch, share of the stream down by as much, if recorded\n"
      "faster: the mirror image\n"
      "inconclusive: fewer than {} repetitions; or the median moved so far and the rest "
      "disagrees;\n"
      "  or twice the standard error of the ratio of medians, from the quartiles, is above {:g} %\n"
      "same: all else\n",
      percent, comparison.rule.alpha, comparison.JudgedCount(),
      comparison.JudgedCount() == 1 ? "" : "s", percent / 2, kMinRepetitions, percent);
}

}  // namespace dlsim::sim
