// SPDX-License-Identifier: Apache-2.0
// The Mann-Whitney test against SciPy, and Holm's correction.
#include "sim/bench/rank_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace dlsim::sim {
namespace {

using Sample = std::vector<double>;

// Sizes of the groups of equal values, by another way than the code under test.
Sample Ties(Sample values) {
  std::map<double, double> counts;
  for (const double value : values) ++counts[value];
  Sample ties;
  for (const auto& [value, count] : counts) ties.push_back(count);
  return ties;
}

TEST(RankTest, AgreesWithSciPy) {
  std::ifstream file(DLSIM_TEST_DATA "/bench/rank_test_golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["tests"].size(), 52u);
  for (const auto& test : golden["tests"]) {
    SCOPED_TRACE(test.dump());
    const Sample a = test["a"], b = test["b"];
    const RankTest result = MannWhitney(a, b);
    EXPECT_EQ(result.u, test["u"].get<double>());
    Sample both = a;
    both.insert(both.end(), b.begin(), b.end());
    const double asymptotic = AsymptoticP(result.u, a.size(), b.size(), Ties(both));
    EXPECT_NEAR(asymptotic, test["asymptotic"], 1e-12);
    if (test["exact"].is_null()) {
      EXPECT_NEAR(result.p, test["asymptotic"], 1e-12);
    } else {
      EXPECT_NEAR(result.p / test["exact"].get<double>(), 1, 1e-12);
    }
  }
}

TEST(RankTest, DoesNotDependOnWhichSampleComesFirst) {
  const Sample a = {1, 2, 3, 4, 5, 6, 6.5}, b = {3.5, 7, 8, 9, 10, 0.5};
  const RankTest forth = MannWhitney(a, b), back = MannWhitney(b, a);
  EXPECT_EQ(forth.p, back.p);
  EXPECT_EQ(forth.u + back.u, 42);
  EXPECT_EQ(forth.superiority + back.superiority, 1);
}

TEST(RankTest, SeparatedSamplesHaveTheSmallestP) {
  const Sample a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12};
  EXPECT_DOUBLE_EQ(MannWhitney(a, b).p, 2.0 / 924);  // C(12, 6)
  EXPECT_EQ(MannWhitney(a, b).superiority, 1);
  EXPECT_EQ(MannWhitney(b, a).superiority, 0);
}

TEST(RankTest, EqualValuesShowNothing) {
  const Sample a = {5, 5, 5, 5, 5, 5};
  EXPECT_EQ(MannWhitney(a, a).p, 1);
  EXPECT_EQ(MannWhitney(a, a).superiority, 0.5);
}

TEST(Holm, MultipliesTheSmallestByTheNumberOfTestsAndNeverFalls) {
  // As R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
  const Sample p = {0.01, 0.04, 0.03, 0.005};
  const Sample corrected = HolmCorrected(p);
  const Sample expected = {0.03, 0.06, 0.06, 0.02};
  for (size_t i = 0; i < p.size(); ++i) EXPECT_DOUBLE_EQ(corrected[i], expected[i]);
  EXPECT_EQ(HolmCorrected(Sample{0.6, 0.7}), (Sample{1, 1}));
  EXPECT_TRUE(HolmCorrected({}).empty());
}

}  // namespace
}  // namespace dlsim::sim
