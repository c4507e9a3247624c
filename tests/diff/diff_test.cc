// SPDX-License-Identifier: Apache-2.0
// What two gradients differ by: the figures, and the cases without a direction or a norm; and which
// steps are compared.
#include "sim/diff/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace dlsim::sim {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TraceTensor TensorOf(const std::vector<float>& values, const std::string& name = "w.grad") {
  return {.info = TensorInfo{.name = name, .shape = {values.size()}},
          .elements = values.size(),
          .memory = reinterpret_cast<const std::byte*>(values.data())};
}

// A step whose micro-steps hold these arrays.
TraceStep StepOf(const std::vector<std::vector<float>>& micro_steps) {
  TraceStep step;
  for (size_t i = 0; i < micro_steps.size(); ++i) {
    Recording& recording = step.recordings.emplace_back();
    if (micro_steps.size() > 1) recording.micro = static_cast<int64_t>(i);
    recording.tensors.push_back(TensorOf(micro_steps[i]));
  }
  return step;
}

TensorDifference Compare(const std::vector<float>& a, const std::vector<float>& b) {
  return CompareSteps(StepOf({a}), StepOf({b})).tensors.at(0);
}

StepTables TablesOf(const std::vector<float>& values) {
  StepTables step;
  step.tensors = {TensorInfo{.name = "w.grad", .shape = {values.size()}}};
  step.gradients = 1;
  step.parts = {{Tabulate(values)}};
  return step;
}

TensorDifference CompareTables(const std::vector<float>& a, const std::vector<float>& b) {
  return CompareSteps(TablesOf(a), TablesOf(b)).tensors.at(0);
}

TEST(TensorDifference, HasRatioRelativeDifferenceAndCosine) {
  const TensorDifference found = Compare({3, 4}, {4, 3});
  EXPECT_EQ(found.elements, 2u);
  EXPECT_EQ(found.norm_a, 5);
  EXPECT_EQ(found.norm_b, 5);
  EXPECT_EQ(found.figures[kNormRatio], 1);
  EXPECT_DOUBLE_EQ(*found.figures[kRelativeDifference], std::sqrt(2) / 5);
  EXPECT_DOUBLE_EQ(*found.figures[kCosine], 24.0 / 25);
  EXPECT_EQ(found.difference(), *found.figures[kRelativeDifference]);
  EXPECT_EQ(Compare({1, 2}, {-1, -2}).figures[kCosine], -1);
  EXPECT_EQ(Compare({1, 2}, {-1, -2}).figures[kRelativeDifference], 2);
  EXPECT_EQ(Compare({1, 0}, {0, 8}).figures[kCosine], 0);
}

TEST(TensorDifference, IsExactlyZeroForEqualTensors) {
  std::vector<float> values;
  for (int i = 1; i < 1000; ++i) values.push_back(std::ldexp(1.0f / static_cast<float>(i), -i / 8));
  const TensorDifference found = Compare(values, values);
  EXPECT_EQ(found.figures[kRelativeDifference], 0);
  EXPECT_EQ(found.figures[kCosine], 1);
  EXPECT_EQ(found.figures[kNormRatio], 1);
}

TEST(TensorDifference, OfZerosIsDefined) {
  const TensorDifference both = Compare({0, -0.0f}, {-0.0f, 0});
  EXPECT_EQ(both.figures[kRelativeDifference], 0);
  EXPECT_EQ(both.figures[kCosine], 1);
  EXPECT_EQ(both.figures[kNormRatio], 1);
  const TensorDifference of_a = Compare({0, 0}, {1, 0});
  EXPECT_EQ(of_a.figures[kRelativeDifference], kInfinity);
  EXPECT_EQ(of_a.figures[kCosine], 0);
  EXPECT_EQ(of_a.figures[kNormRatio], kInfinity);
  const TensorDifference of_b = Compare({1, 0}, {0, 0});
  EXPECT_EQ(of_b.figures[kRelativeDifference], 1);
  EXPECT_EQ(of_b.figures[kCosine], 0);
  EXPECT_EQ(of_b.figures[kNormRatio], 0);
}

TEST(TensorDifference, NonfiniteElementsAreAlikeOrPartTheTensors) {
  const TensorDifference alike =
      Compare({kNan, kInfinity, -kInfinity, 3, 4}, {-kNan, kInfinity, -kInfinity, 3, 4});
  EXPECT_EQ(alike.nonfinite_differences, 0u);
  EXPECT_EQ(alike.difference(), 0);
  EXPECT_EQ(alike.norm_a, 5);
  const TensorDifference apart =
      Compare({kNan, kInfinity, -kInfinity, 3, 4, 5}, {1, -kInfinity, kNan, 3, 4, kInfinity});
  EXPECT_EQ(apart.nonfinite_differences, 4u);
  EXPECT_EQ(apart.difference(), kInfinity);
  EXPECT_EQ(apart.figures[kRelativeDifference], 0);  // of the elements that are finite in both
  EXPECT_EQ(apart.norm_a, 5);
  EXPECT_EQ(apart.norm_b, 5);
}

TEST(TensorDifference, TheExtremesOfFloat32NeitherOverflowNorVanish) {
  const float largest = std::numeric_limits<float>::max(), smallest = 0x1p-149f;
  EXPECT_DOUBLE_EQ(*Compare({largest, largest}, {largest, -largest}).figures[kRelativeDifference],
                   std::sqrt(2));
  EXPECT_EQ(Compare({smallest}, {3 * smallest}).figures[kRelativeDifference], 2);
  EXPECT_EQ(Compare({smallest}, {3 * smallest}).figures[kCosine], 1);
}

TEST(TensorDifference, IsOfTheSumOfMicroSteps) {
  const ComparedStep found = CompareSteps(StepOf({{1, 2}, {2, 2}}), StepOf({{4, 0}, {-1, 4}}));
  EXPECT_EQ(found.tensors.at(0).difference(), 0);
  EXPECT_EQ(found.tensors.at(0).norm_a, 5);
}

TEST(ComparedStep, ListsWhatDoesNotMatch) {
  const std::vector<float> values = {1, 2};
  TraceStep a = StepOf({values}), b = StepOf({values});
  a.recordings[0].tensors.push_back(TensorOf(values, "a.grad"));
  a.recordings[0].tensors.push_back(TensorOf(values, "c.grad"));
  b.recordings[0].tensors.push_back(TensorOf(values, "b.grad"));
  b.recordings[0].tensors.push_back(TensorOf(values, "c.grad"));
  b.recordings[0].tensors.back().info = TensorInfo{.name = "c.grad", .shape = {1, 2}};
  const ComparedStep found = CompareSteps(a, b);
  ASSERT_EQ(found.tensors.size(), 1u);
  ASSERT_EQ(found.unmatched.size(), 3u);
  EXPECT_EQ(found.unmatched[0].why, Mismatch::kOnlyInA);
  EXPECT_EQ(found.unmatched[1].why, Mismatch::kShape);
  EXPECT_EQ(found.unmatched[2].why, Mismatch::kOnlyInB);
  EXPECT_EQ(found.unmatched[2].name, "b.grad");
}

TEST(HistogramDistance, CountsBinades) {
  const std::vector<float> values = {0x1p-3f, 0x1.8p-3f, -0x1p0f, 0x1.2p5f};
  std::vector<float> doubled, mixed = values;
  for (const float value : values) doubled.push_back(8 * value);
  EXPECT_EQ(CompareTables(values, values).difference(), 0);
  EXPECT_EQ(CompareTables(values, doubled).figures[kHistogramDistance], 3);
  EXPECT_EQ(CompareTables(values, doubled).figures[kNormRatio], 8);
  mixed.back() *= 4;
  EXPECT_EQ(CompareTables(values, mixed).figures[kHistogramDistance],
            0.5);  // a quarter moves by two
  EXPECT_EQ(CompareTables({0x1p-149f}, {0x1p-126f}).figures[kHistogramDistance], 1);
}

TEST(HistogramDistance, IsTheSameForLargeTensors) {
  std::vector<float> values, doubled;
  for (int i = 0; i < 3000; ++i)
    values.push_back(std::ldexp(1 + 0x1p-12f * static_cast<float>(i), i % 270 - 149));
  for (const float value : values) doubled.push_back(2 * value);
  EXPECT_EQ(CompareTables(values, values).difference(), 0);
  // Subnormals count as one binade; all but those that stay in it move by one.
  uint64_t moved = 0;
  for (const float value : values) moved += value >= 0x1p-127f;
  EXPECT_DOUBLE_EQ(*CompareTables(values, doubled).figures[kHistogramDistance],
                   static_cast<double>(moved) / 3000);
}

TEST(HistogramDistance, ZerosAndNonfiniteValuesCountApart) {
  const TensorDifference zeros = CompareTables({0, 1, 1, 1}, {0, 0, 0, 1});
  EXPECT_EQ(zeros.figures[kHistogramDistance], 0);
  EXPECT_EQ(zeros.figures[kZeroDifference], 0.5);
  EXPECT_EQ(zeros.difference(), 0.5);
  EXPECT_EQ(CompareTables({0, 0}, {0, 0}).difference(), 0);
  EXPECT_EQ(CompareTables({0, 0}, {0, 1}).difference(), kInfinity);
  EXPECT_EQ(CompareTables({0, 1}, {0, 0}).difference(), kInfinity);
  const TensorDifference nonfinite = CompareTables({kNan, kNan, 1}, {kNan, kInfinity, 1});
  EXPECT_EQ(nonfinite.nonfinite_differences, 2u);
  EXPECT_EQ(nonfinite.difference(), kInfinity);
  EXPECT_EQ(CompareTables({kNan, 1}, {kNan, 1}).difference(), 0);
}

using Numbers = std::vector<int64_t>;

std::vector<std::pair<int64_t, int64_t>> Pairs(const Numbers& a, const Numbers& b,
                                               const AlignedSteps& aligned) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const auto& [of_a, of_b] : aligned.pairs) pairs.emplace_back(a[of_a], b[of_b]);
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
