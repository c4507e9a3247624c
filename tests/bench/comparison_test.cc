// SPDX-License-Identifier: Apache-2.0
// The rule that says slower, faster, same or inconclusive: its edges, and how often it is wrong on
// made-up samples with the noise of real runs.
#include "sim/bench/comparison.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/bench_samples.h"

namespace dlsim::sim {
namespace {

bool Any(const std::string&) { return true; }

KernelComparison CompareOne(const std::vector<double>& base, const std::vector<double>& current,
                            const ComparisonRule& rule = {}, BenchKind kind = BenchKind::kTime) {
  const Comparison comparison = Compare(FileOf({{"k", base, {}, {}}}, kind),
                                        FileOf({{"k", current, {}, {}}}, kind), rule, Any);
  return comparison.kernels.at(0);
}

std::vector<double> Scaled(std::vector<double> times, double factor) {
  for (double& time : times) time *= factor;
  return times;
}

// Eleven times within 0.4 %, without ties.
const std::vector<double> kQuiet = {99.8,  99.84, 99.9,  99.95,  99.97, 100,
                                    100.1, 100.2, 99.85, 100.02, 100.03};

TEST(Comparison, KnowsSlowerFromFaster) {
  const KernelComparison slower = CompareOne(kQuiet, Scaled(kQuiet, 1.1));
  EXPECT_EQ(slower.verdict, BenchVerdict::kSlower);
  EXPECT_NEAR(slower.median_ratio, 1.1, 1e-12);
  EXPECT_NEAR(slower.min_ratio, 1.1, 1e-12);
  EXPECT_EQ(slower.rank.superiority, 1);
  const KernelComparison faster = CompareOne(Scaled(kQuiet, 1.1), kQuiet);
  EXPECT_EQ(faster.verdict, BenchVerdict::kFaster);
  EXPECT_EQ(faster.rank.superiority, 0);
  EXPECT_EQ(CompareOne(kQuiet, kQuiet).verdict, BenchVerdict::kSame);
}

// A slower memory or another library is no fault of dlsim's, and no test to correct for.
TEST(Comparison, JudgesNoLimitsAndPeers) {
  const std::vector<double> slow = Scaled(kQuiet, 1.5);
  KernelSamples peer = {"peer", slow, {}, {}};
  peer.is_judged = false;
  const Comparison comparison = Compare(FileOf({{"peer", kQuiet, {}, {}}, {"k", kQuiet, {}, {}}}),
                                        FileOf({peer, {"k", slow, {}, {}}}), {}, Any);
  ASSERT_EQ(comparison.kernels.size(), 2u);
  EXPECT_EQ(comparison.kernels[0].verdict, BenchVerdict::kSlower);
  EXPECT_EQ(comparison.kernels[0].corrected_p, comparison.kernels[0].rank.p);
  EXPECT_EQ(comparison.kernels[1].verdict, BenchVerdict::kUnjudged);
  EXPECT_EQ(comparison.JudgedCount(), 1u);
}

TEST(Comparison, NeedsMoreThanTheThreshold) {
  EXPECT_EQ(CompareOne(kQuiet, Scaled(kQuiet, 1.0499)).verdict, BenchVerdict::kSame);
  EXPECT_EQ(CompareOne(kQuiet, Scaled(kQuiet, 1.0501)).verdict, BenchVerdict::kSlower);
  EXPECT_EQ(CompareOne(kQuiet, Scaled(kQuiet, 1 / 1.0499)).verdict, BenchVerdict::kSame);
  EXPECT_EQ(CompareOne(kQuiet, Scaled(kQuiet, 1 / 1.0501)).verdict, BenchVerdict::kFaster);
  EXPECT_EQ(CompareOne(kQuiet, Scaled(kQuiet, 1.031), {.threshold = 0.03}).verdict,
            BenchVerdict::kSlower);
  // Exactly the threshold, in numbers that binary floating point has: not more than it.
  const std::vector<double> base = {64, 65, 66, 67, 68, 69, 70};
  EXPECT_EQ(CompareOne(base, Scaled(base, 1.5), {.threshold = 0.5}).verdict, BenchVerdict::kSame);
}

TEST(Comparison, NeedsTheShortestToMoveByHalfTheThreshold) {
  std::vector<double> current = Scaled(kQuiet, 1.1);
  current[0] = 99.8 * 1.026;
  EXPECT_EQ(CompareOne(kQuiet, current).verdict, BenchVerdict::kSlower);
  current[0] = 99.8 * 1.024;
  const KernelComparison kernel = CompareOne(kQuiet, current);
  EXPECT_EQ(kernel.verdict, BenchVerdict::kInconclusive);
  EXPECT_EQ(kernel.reason, "the shortest did not move");
}

// Wall-clock time: a slower machine slows the stream as well.
TEST(Comparison, NeedsTheShareOfTheStreamToMoveOnSeveralThreads) {
  const auto verdict = [](const std::string& name, double share) {
    return Compare(FileOf({{name, kQuiet, {}, {0.8}}}),
                   FileOf({{name, Scaled(kQuiet, 1.1), {}, {share}}}), {}, Any)
        .kernels[0];
  };
  EXPECT_EQ(verdict("k/threads:2", 0.8 / 1.03).verdict, BenchVerdict::kSlower);
  EXPECT_EQ(verdict("k/threads:2", 0.8 / 1.02).verdict, BenchVerdict::kInconclusive);
  EXPECT_EQ(verdict("k/threads:2", 0.8 / 1.02).reason, "so did the stream");
  EXPECT_EQ(verdict("k/threads:1", 0.8).verdict, BenchVerdict::kSlower);  // CPU time
}

TEST(Comparison, NeedsSixRepetitionsOnEachSide) {
  const std::vector<double> five(kQuiet.begin(), kQuiet.begin() + 5);
  const std::vector<double> six(kQuiet.begin(), kQuiet.begin() + 6);
  EXPECT_EQ(CompareOne(kQuiet, Scaled(five, 2)).reason, "5 repetitions");
  EXPECT_EQ(CompareOne(five, Scaled(kQuiet, 2)).verdict, BenchVerdict::kInconclusive);
  EXPECT_EQ(CompareOne({100}, {200}).reason, "1 repetition");
  EXPECT_EQ(CompareOne(six, Scaled(six, 2)).verdict, BenchVerdict::kSlower);
}

TEST(Comparison, NeedsSignificanceAfterHolmsCorrection) {
  const std::vector<double> six(kQuiet.begin(), kQuiet.begin() + 6);
  std::vector<KernelSamples> base, current;
  for (int i = 0; i < 5; ++i) {
    base.push_back({std::to_string(i), six, {}, {}});
    current.push_back({std::to_string(i), i == 0 ? Scaled(six, 2) : six, {}, {}});
  }
  // Alone p = 2 / 924; times five kernels it is above 0.01.
  const auto verdict = [&] { return Compare(FileOf(base), FileOf(current), {}, Any).kernels[0]; };
  EXPECT_EQ(verdict().name, "0");
  EXPECT_EQ(verdict().verdict, BenchVerdict::kInconclusive);
  EXPECT_EQ(verdict().reason, "not significant");
  EXPECT_NEAR(verdict().corrected_p, 10.0 / 924, 1e-12);
  base.pop_back(), current.pop_back();
  EXPECT_EQ(verdict().verdict, BenchVerdict::kSlower);
  EXPECT_EQ(CompareOne(six, Scaled(six, 2), {.alpha = 0.002}).verdict, BenchVerdict::kInconclusive);
}

TEST(Comparison, TiesAreNoEvidence) {
  const std::vector<double> base(11, 100.0);
  EXPECT_EQ(CompareOne(base, base).verdict, BenchVerdict::kSame);
  EXPECT_EQ(CompareOne(base, std::vector<double>(11, 110.0)).verdict, BenchVerdict::kSlower);
  std::vector<double> mostly_equal(11, 100.0);
  for (size_t i = 0; i < 6; ++i) mostly_equal[i] = 110;
  EXPECT_EQ(CompareOne(base, mostly_equal).verdict, BenchVerdict::kInconclusive);
}

TEST(Comparison, SaysSoWhereNoiseHidesAChangeOfTheThreshold) {
  const std::vector<double> wide = {80, 85, 90, 95, 98, 100, 102, 105, 110, 115, 120};
  const KernelComparison kernel = CompareOne(wide, Scaled(wide, 1.001));
  EXPECT_EQ(kernel.verdict, BenchVerdict::kInconclusive);
  EXPECT_TRUE(kernel.reason.starts_with("noise of ")) << kernel.reason;
  EXPECT_NEAR(DetectableChange(kernel.base, kernel.current),
              2 * 1.2533 / 1.349 * kernel.base.spread * std::sqrt(2.0 / 11), 1e-12);
  EXPECT_EQ(CompareOne(wide, Scaled(wide, 1.001), {.threshold = 0.5}).verdict, BenchVerdict::kSame);
}

TEST(Comparison, CountsOfInstructionsNeedNoStatistics) {
  const ComparisonRule rule = {.threshold = 0.01};
  const auto verdict = [&](double base, double current) {
    return CompareOne({base}, {current}, rule, BenchKind::kInstructions).verdict;
  };
  EXPECT_EQ(verdict(100000, 101000), BenchVerdict::kSame);
  EXPECT_EQ(verdict(100000, 101001), BenchVerdict::kSlower);
  EXPECT_EQ(verdict(101001, 100000), BenchVerdict::kFaster);
}

TEST(Comparison, ListsKernelsOfOneSideAndSortsTheWorstFirst) {
  const BenchmarkFile base = FileOf({{"gone", kQuiet, {}, {}},
                                     {"same", kQuiet, {}, {}},
                                     {"faster", Scaled(kQuiet, 2), {}, {}},
                                     {"slow", kQuiet, {}, {}},
                                     {"slowest", kQuiet, {}, {}}});
  const BenchmarkFile current = FileOf({{"slow", Scaled(kQuiet, 1.2), {}, {}},
                                        {"slowest", Scaled(kQuiet, 1.4), {}, {}},
                                        {"new", kQuiet, {}, {}},
                                        {"faster", kQuiet, {}, {}},
                                        {"same", kQuiet, {}, {}}});
  const Comparison comparison = Compare(base, current, {}, Any);
  std::string names;
  for (const KernelComparison& kernel : comparison.kernels) names += kernel.name + " ";
  EXPECT_EQ(names, "slowest slow faster same ");
  EXPECT_EQ(comparison.only_in_base, std::vector<std::string>{"gone"});
  EXPECT_EQ(comparison.only_in_current, std::vector<std::string>{"new"});
  EXPECT_EQ(comparison.Count(BenchVerdict::kSlower), 2u);
}

TEST(Comparison, RefusesToCompareNothing) {
  const auto nothing = [](const std::string&) { return false; };
  const BenchmarkFile file = FileOf({{"k", kQuiet, {}, {}}});
  try {
    Compare(file, file, {}, nothing);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIncomparable);
  }
}

struct Rates {
  int slower = 0, inconclusive = 0, faster = 0, kernels = 0;
};

// Compares pairs of runs of twelve kernels, the second slower by `planted`.
Rates Simulate(const NoiseModel& noise, double planted, size_t processes, int runs) {
  std::mt19937_64 random(20240607);
  Rates rates;
  for (int run = 0; run < runs; ++run) {
    std::vector<KernelSamples> base, current;
    for (int i = 0; i < 12; ++i) {
      const std::string name = std::to_string(i);
      base.push_back({name, NoisyTimes(noise, 100, 11, processes, random), {}, {}});
      current.push_back(
          {name, NoisyTimes(noise, 100 * (1 + planted), 11, processes, random), {}, {}});
    }
    const Comparison comparison = Compare(FileOf(base), FileOf(current), {}, Any);
    rates.slower += static_cast<int>(comparison.Count(BenchVerdict::kSlower));
    rates.inconclusive += static_cast<int>(comparison.Count(BenchVerdict::kInconclusive));
    rates.faster += static_cast<int>(comparison.Count(BenchVerdict::kFaster));
    rates.kernels += 12;
  }
  return rates;
}

TEST(Noise, NoChangeIsNotSlower) {
  const Rates cache = Simulate(kCacheNoise, 0, 11, 200);
  EXPECT_EQ(cache.slower, 0);
  EXPECT_EQ(cache.faster, 0);
  EXPECT_LE(cache.inconclusive, cache.kernels / 1000);
  const Rates memory = Simulate(kMemoryNoise, 0, 11, 200);
  EXPECT_LE(memory.slower, memory.kernels * 5 / 1000);
  EXPECT_LE(memory.faster, memory.kernels * 5 / 1000);
}

TEST(Noise, ChangesBelowTheThresholdAreHardlyEverSlower) {
  const Rates rates = Simulate(kCacheNoise, 0.03, 11, 100);
  EXPECT_LE(rates.slower, rates.kernels / 100);
}

TEST(Noise, ChangesOfTheThresholdAreSlowerHalfTheTime) {
  const Rates rates = Simulate(kCacheNoise, 0.05, 11, 100);
  EXPECT_GE(rates.slower, rates.kernels * 2 / 10);
  EXPECT_LE(rates.slower, rates.kernels * 8 / 10);
}

TEST(Noise, LargeChangesAreFound) {
  const Rates ten = Simulate(kCacheNoise, 0.1, 11, 100);
  EXPECT_GE(ten.slower, ten.kernels * 99 / 100);
  const Rates thirty = Simulate(kMemoryNoise, 0.3, 11, 100);
  EXPECT_GE(thirty.slower, thirty.kernels * 98 / 100);
}

// Why repetitions are spread: one process for all of them makes its shift look like a change.
TEST(Noise, RepetitionsOfOneProcessHideItsShift) {
  constexpr NoiseModel kLayoutNoise = {0, 0.05, 0.002, 0, 0.1, 0.03};
  const Rates one = Simulate(kLayoutNoise, 0, 1, 100);
  const Rates eleven = Simulate(kLayoutNoise, 0, 11, 100);
  EXPECT_GE(one.slower, one.kernels / 10);
  EXPECT_EQ(eleven.slower, 0);
}

}  // namespace
}  // namespace dlsim::sim
