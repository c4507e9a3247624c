// SPDX-License-Identifier: Apache-2.0
// What two gradients differ by: the figures, and the cases without a direction or a norm.
#include "sim/diff/tensor_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "dlsim/ladder.h"

namespace dlsim::sim {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The one-element sources of an array in memory.
struct Side {
  std::vector<float> values;
  TraceTensor tensor;
  TensorSources sources;

  explicit Side(std::vector<float> of) : values(std::move(of)) {
    tensor.elements = values.size();
    tensor.memory = reinterpret_cast<const std::byte*>(values.data());
    sources = {{"w.grad", Role::kGrad}, values.size(), {{&tensor, 1.0f}}};
  }
  Side(const Side&) = delete;
};

TensorDifference Compare(const std::vector<float>& a, const std::vector<float>& b) {
  const Side of_a(a), of_b(b);
  const SourcePair pair = {&of_a.sources, &of_b.sources};
  TensorDifference difference;
  SetDifference(CompareTensors(std::span(&pair, 1)).front(), difference);
  return difference;
}

const HistogramEdges& PowersOfTwo() {
  static const HistogramEdges edges({});
  return edges;
}

Histogram Count(const std::vector<float>& values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  counter.Add(values);
  return counter.Take();
}

TensorDifference CompareBinned(const std::vector<float>& a, const std::vector<float>& b,
                               const HistogramEdges& edges_b = PowersOfTwo()) {
  const Histogram of_a = Count(a, PowersOfTwo()), of_b = Count(b, edges_b);
  TensorDifference difference;
  SetDifference({&of_a, &PowersOfTwo()}, {&of_b, &edges_b}, difference);
  return difference;
}

TEST(TensorDifference, HasRatioRelativeDifferenceAndCosine) {
  const TensorDifference found = Compare({3, 4}, {4, 3});
  EXPECT_EQ(found.elements, 2u);
  EXPECT_EQ(found.norm_a, 5);
  EXPECT_EQ(found.norm_b, 5);
  EXPECT_EQ(found.norm_ratio(), 1);
  EXPECT_DOUBLE_EQ(*found.relative_difference, std::sqrt(2) / 5);
  EXPECT_DOUBLE_EQ(*found.cosine, 24.0 / 25);
  EXPECT_EQ(found.difference(), found.relative_difference);
  EXPECT_EQ(Compare({1, 2}, {-1, -2}).cosine, -1);
  EXPECT_EQ(Compare({1, 2}, {-1, -2}).relative_difference, 2);
  EXPECT_EQ(Compare({1, 0}, {0, 8}).cosine, 0);
}

TEST(TensorDifference, IsExactlyZeroForEqualTensors) {
  std::vector<float> values;
  for (int i = 1; i < 1000; ++i) values.push_back(std::ldexp(1.0f / static_cast<float>(i), -i / 8));
  const TensorDifference found = Compare(values, values);
  EXPECT_EQ(found.relative_difference, 0);
  EXPECT_EQ(found.cosine, 1);
  EXPECT_EQ(found.norm_ratio(), 1);
}

TEST(TensorDifference, OfZerosIsDefined) {
  const TensorDifference both = Compare({0, -0.0f}, {-0.0f, 0});
  EXPECT_EQ(both.relative_difference, 0);
  EXPECT_EQ(both.cosine, 1);
  EXPECT_EQ(both.norm_ratio(), 1);
  const TensorDifference of_a = Compare({0, 0}, {1, 0});
  EXPECT_EQ(of_a.relative_difference, kInfinity);
  EXPECT_EQ(of_a.cosine, 0);
  EXPECT_EQ(of_a.norm_ratio(), kInfinity);
  const TensorDifference of_b = Compare({1, 0}, {0, 0});
  EXPECT_EQ(of_b.relative_difference, 1);
  EXPECT_EQ(of_b.cosine, 0);
  EXPECT_EQ(of_b.norm_ratio(), 0);
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
  EXPECT_EQ(apart.relative_difference, 0);  // of the elements that are finite in both
  EXPECT_EQ(apart.norm_a, 5);
  EXPECT_EQ(apart.norm_b, 5);
}

TEST(TensorDifference, TheExtremesOfFloat32NeitherOverflowNorVanish) {
  const float largest = std::numeric_limits<float>::max(), smallest = 0x1p-149f;
  EXPECT_DOUBLE_EQ(*Compare({largest, largest}, {largest, -largest}).relative_difference,
                   std::sqrt(2));
  EXPECT_EQ(Compare({smallest}, {3 * smallest}).relative_difference, 2);
  EXPECT_EQ(Compare({smallest}, {3 * smallest}).cosine, 1);
}

TEST(HistogramDistance, CountsBinades) {
  const std::vector<float> values = {0x1p-3f, 0x1.8p-3f, -0x1p0f, 0x1.2p5f};
  std::vector<float> doubled, mixed = values;
  for (const float value : values) doubled.push_back(8 * value);
  EXPECT_EQ(CompareBinned(values, values).difference(), 0);
  EXPECT_EQ(CompareBinned(values, doubled).histogram_distance, 3);
  EXPECT_EQ(CompareBinned(values, doubled).norm_ratio(), 8);
  mixed.back() *= 4;
  EXPECT_EQ(CompareBinned(values, mixed).histogram_distance, 0.5);  // a quarter moves by two
  EXPECT_EQ(CompareBinned({0x1p-149f}, {0x1p-126f}).histogram_distance, 1);
}

TEST(HistogramDistance, DoesNotDependOnTheEdges) {
  const HistogramEdges fine = EdgesOf(DefaultLadder());
  const std::vector<float> values = {1e-40f, 0x1.8p-3f, 0.7f, -1234, 3e38f, 0};
  const TensorDifference found = CompareBinned(values, values, fine);
  EXPECT_EQ(found.histogram_distance, 0);
  EXPECT_EQ(found.zero_difference, 0);
  EXPECT_DOUBLE_EQ(found.norm_ratio(), 1);
}

TEST(HistogramDistance, ZerosAndNonfiniteValuesCountApart) {
  const TensorDifference zeros = CompareBinned({0, 1, 1, 1}, {0, 0, 0, 1});
  EXPECT_EQ(zeros.histogram_distance, 0);
  EXPECT_EQ(zeros.zero_difference, 0.5);
  EXPECT_EQ(zeros.difference(), 0.5);
  EXPECT_EQ(CompareBinned({0, 0}, {0, 0}).difference(), 0);
  EXPECT_EQ(CompareBinned({0, 0}, {0, 1}).difference(), kInfinity);
  EXPECT_EQ(CompareBinned({0, 1}, {0, 0}).difference(), kInfinity);
  const TensorDifference nonfinite = CompareBinned({kNan, kNan, 1}, {kNan, kInfinity, 1});
  EXPECT_EQ(nonfinite.nonfinite_differences, 2u);
  EXPECT_EQ(nonfinite.difference(), kInfinity);
  EXPECT_EQ(CompareBinned({kNan, 1}, {kNan, 1}).difference(), 0);
}

}  // namespace
}  // namespace dlsim::sim
