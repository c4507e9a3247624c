// SPDX-License-Identifier: Apache-2.0
#include "sim/align/align_steps.h"

#include <gtest/gtest.h>

#include <utility>

namespace dlsim::sim {
namespace {

using Numbers = std::vector<int64_t>;

std::vector<std::pair<int64_t, int64_t>> Pairs(const Numbers& a, const Numbers& b,
                                               const AlignedSteps& aligned) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const AlignedSteps::Pair& pair : aligned.pairs) pairs.emplace_back(a[pair.a], b[pair.b]);
  return pairs;
}

TEST(AlignSteps, PairsEqualNumbersAndListsTheOthers) {
  const Numbers a = {0, 2, 3, 7, 9}, b = {1, 2, 7, 8, 10};
  const AlignedSteps aligned = AlignSteps(a, b, Alignment::kNumber);
  EXPECT_EQ(Pairs(a, b, aligned), (std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {7, 7}}));
  EXPECT_EQ(aligned.only_a, (Numbers{0, 3, 9}));
  EXPECT_EQ(aligned.only_b, (Numbers{1, 8, 10}));
}

TEST(AlignSteps, PairsByIndexWhateverTheNumbers) {
  const Numbers a = {5, 6}, b = {0, 1, 2};
  const AlignedSteps aligned = AlignSteps(a, b, Alignment::kIndex);
  EXPECT_EQ(Pairs(a, b, aligned), (std::vector<std::pair<int64_t, int64_t>>{{5, 0}, {6, 1}}));
  EXPECT_EQ(aligned.only_a, Numbers{});
  EXPECT_EQ(aligned.only_b, Numbers{2});
}

TEST(AlignSteps, FindsNothingInCommon) {
  const AlignedSteps aligned = AlignSteps(Numbers{1}, Numbers{2}, Alignment::kNumber);
  EXPECT_TRUE(aligned.pairs.empty());
  EXPECT_EQ(aligned.only_a, Numbers{1});
  EXPECT_EQ(aligned.only_b, Numbers{2});
}

}  // namespace
}  // namespace dlsim::sim
