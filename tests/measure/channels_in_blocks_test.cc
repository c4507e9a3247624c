// SPDX-License-Identifier: Apache-2.0
// Channels of which several blocks have elements: the same values, laid out otherwise, lose the
// same. All is compared for equality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/ladder.h"
#include "dlsim/profile.h"
#include "dlsim/simd.h"

namespace dlsim {
namespace {

using Shape = std::vector<uint64_t>;

// Many sizes, subnormal numbers, zeros, and what is not finite.
std::vector<float> MixedValues(size_t count) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    const unsigned kind = random() % 64;
    value = std::ldexp(normal(random), static_cast<int>(kind) - 40);
    if (kind == 0) value = std::ldexp(value, -100);
    if (kind == 1) value = 0;
    if (kind == 2 && random() % 64 == 0) value = random() % 2 == 0 ? INFINITY : NAN;
  }
  return values;
}

struct Recorded {
  Role role;
  Shape shape;
  DType dtype;
  std::span<const std::byte> bytes;
};

Recorded Float32(Role role, const Shape& shape, std::span<const float> values) {
  return {role, shape, DType::kF32, std::as_bytes(values)};
}

// A step of recordings of one tensor, in memory or read in pieces.
TraceStep StepOf(std::span<const Recorded> recordings, bool in_memory = true) {
  TraceStep step;
  for (const Recorded& recorded : recordings) {
    TraceTensor tensor;
    tensor.name = recorded.role == Role::kGrad ? "w.grad" : "fc.act_grad";
    tensor.role = recorded.role;
    tensor.shape = recorded.shape;
    tensor.dtype = recorded.dtype;
    tensor.elements = recorded.bytes.size() / DTypeSize(recorded.dtype);
    if (in_memory) {
      tensor.memory = recorded.bytes.data();
    } else {
      tensor.read = [from = recorded.bytes](uint64_t offset, std::span<std::byte> out) {
        std::ranges::copy(from.subspan(offset, out.size()), out.begin());
      };
    }
    step.recordings.emplace_back().tensors = {tensor};
  }
  return step;
}

ChannelCurves CurvesOf(const Recorded& recorded, bool in_memory = true) {
  const TraceStep step = StepOf(std::span(&recorded, 1), in_memory);
  return MeasureChannels(step, Accumulation::kQuantizeThenSum).front();
}

// The channels of an activation one after the other, as rows.
std::vector<float> RowsOf(const ChannelLayout& layout, std::span<const float> values) {
  std::vector<float> rows;
  for (uint64_t channel = 0; channel < layout.channels; ++channel) {
    for (uint64_t outer = 0; outer < layout.outer; ++outer) {
      const uint64_t at = (outer * layout.channels + channel) * layout.inner;
      rows.insert(rows.end(), values.begin() + static_cast<ptrdiff_t>(at),
                  values.begin() + static_cast<ptrdiff_t>(at + layout.inner));
    }
  }
  return rows;
}

class ChannelsInBlocks : public testing::TestWithParam<std::string> {
 protected:
  ChannelsInBlocks() { UseSimdTarget(GetParam()); }
  ~ChannelsInBlocks() override { UseSimdTarget(""); }
};
INSTANTIATE_TEST_SUITE_P(Targets, ChannelsInBlocks, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

// A block has 65,536 elements: shapes of which one block holds all, whole rows, pieces of rows, and
// less than one.
TEST_P(ChannelsInBlocks, OfActivationsAreThoseOfTheSameRows) {
  const Shape shapes[] = {{128, 64},      {5000, 40},      {90, 3000},
                          {3, 70'000},    {70'001, 3},     {2, 9, 1, 6001},
                          {7, 5, 60, 50}, {3, 100, 9, 33}, {2, 40'000, 1, 2}};
  for (const Shape& shape : shapes) {
    const ChannelLayout layout = LayoutOf(Role::kActGrad, shape);
    const uint64_t of_channel = layout.outer * layout.inner;
    const std::vector<float> values = MixedValues(layout.channels * of_channel);
    const ChannelCurves features = CurvesOf(Float32(Role::kActGrad, shape, values));
    const Shape row_shape = {layout.channels, of_channel};
    const std::vector<float> rows = RowsOf(layout, values);
    EXPECT_EQ(features, CurvesOf(Float32(Role::kGrad, row_shape, rows))) << shape[0];
    EXPECT_GE(features.channels, 3U);
  }
}

TEST_P(ChannelsInBlocks, AreThoseOfAnyOtherTarget) {
  const std::vector<float> values = MixedValues(5000 * 40);
  const Recorded recorded[] = {Float32(Role::kActGrad, {5000, 40}, values),
                               Float32(Role::kGrad, {40, 5000}, values)};
  for (const Recorded& one : recorded) {
    UseSimdTarget(GetParam());
    const ChannelCurves curves = CurvesOf(one);
    UseSimdTarget(SupportedSimdTargets().back());
    EXPECT_EQ(curves, CurvesOf(one));
  }
}

// A vector is one channel; more values of one half binade than fit into one record.
TEST_P(ChannelsInBlocks, MayHaveManyEqualValues) {
  const std::vector<float> values(300'000, std::nextafter(2.0f, 0.0f));
  const ChannelCurves curves = CurvesOf(Float32(Role::kGrad, {values.size()}, values));
  EXPECT_EQ(curves, CurvesOf(Float32(Role::kGrad, {3}, std::span(values).first(3))));
  const ChannelCurves of_two = CurvesOf(Float32(Role::kActGrad, {150'000, 2}, values));
  EXPECT_EQ(of_two.channels, 2U);
  EXPECT_EQ(of_two.mean, curves.mean);
}

TEST(ChannelsOfMicroSteps, AreThoseOfAllTheirValues) {
  const std::vector<float> values = MixedValues(5000 * 40);
  const size_t cut = 3800 * 40;
  const Recorded pieces[] = {
      Float32(Role::kActGrad, {3800, 40}, std::span(values).first(cut)),
      Float32(Role::kActGrad, {1200, 40}, std::span(values).subspan(cut)),
  };
  EXPECT_EQ(MeasureChannels(StepOf(pieces), Accumulation::kQuantizeThenSum).front(),
            CurvesOf(Float32(Role::kActGrad, {5000, 40}, values)));
}

TEST(ChannelsOfMicroSteps, AreThoseOfTheirSum) {
  const std::vector<float> one = MixedValues(3 * 50'000);
  std::vector<float> other(one.rbegin(), one.rend()), sum(one.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = one[i] + other[i];
  const Shape shape = {3, 50'000};
  const Recorded both[] = {Float32(Role::kGrad, shape, one), Float32(Role::kGrad, shape, other)};
  EXPECT_EQ(MeasureChannels(StepOf(both), Accumulation::kSumThenQuantize).front(),
            CurvesOf(Float32(Role::kGrad, shape, sum)));
}

TEST(ChannelsOfAnyType, AreThoseOfItsFloat32Values) {
  std::vector<float> values = MixedValues(3 * 50'000);
  for (float& value : values) value = std::isfinite(value) ? value : 1;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF64}) {
    std::vector<uint16_t> codes(values.size());
    std::vector<double> doubles(values.begin(), values.end());
    if (dtype != DType::kF64) {
      const Format format = dtype == DType::kF16 ? kFp16 : kBf16;
      EncodeArray({{format}}, values, std::span<uint16_t>(codes));
      DecodeArray(format, std::span<const uint16_t>(codes), std::span(values));
    }
    const auto bytes = dtype == DType::kF64 ? std::as_bytes(std::span<const double>(doubles))
                                            : std::as_bytes(std::span<const uint16_t>(codes));
    for (const bool in_memory : {true, false}) {
      for (const auto& [role, shape] :
           {std::pair(Role::kGrad, Shape{3, 50'000}), std::pair(Role::kActGrad, Shape{3000, 50})}) {
        EXPECT_EQ(CurvesOf({role, shape, dtype, bytes}, in_memory),
                  CurvesOf(Float32(role, shape, values)));
      }
    }
  }
}

// Whatever else is asked of the values.
TEST(ChannelsOnTheWay, AreThoseOfAPassOfTheirOwn) {
  const std::vector<float> values = MixedValues(5000 * 40);
  const Recorded twice[] = {Float32(Role::kActGrad, {5000, 40}, values),
                            Float32(Role::kActGrad, {5000, 40}, values)};
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  const std::vector<StepQuestion> questions = {{{kFp16}, 1.0f}, {{kBf16}, 1024.0f}};
  for (const size_t recordings : {1u, 2u}) {
    const TraceStep step = StepOf(std::span(twice).first(recordings));
    for (const auto how : {Accumulation::kQuantizeThenSum, Accumulation::kSumThenQuantize}) {
      const std::vector<ChannelCurves> expected = MeasureChannels(step, how);
      EXPECT_TRUE(expected.front().known());
      StepOptions options = {.accumulation = how};
      EXPECT_TRUE(MeasureStep(step, questions, options).channels.empty());
      EXPECT_EQ(ProfileOf(step, edges, options).channels, expected);
      options.channels = true;
      EXPECT_EQ(MeasureStep(step, questions, options).channels, expected);
      EXPECT_EQ(MeasureStep(step, {}, options).channels, expected);
    }
  }
}

// Questions tell what the tensor loses, which is what its only channel loses.
TEST(ChannelsOnTheWay, LeaveTheCurveOfAnOnlyChannelToItself) {
  constexpr size_t kLarge = 150'000, kSmall = 100;
  const std::vector<float> values = MixedValues(kLarge);
  const std::vector<float> none = {0, -0.0f, INFINITY, NAN};
  const std::vector<StepQuestion> questions = {{{kFp16}, 1.0f}};
  for (const size_t count : {kLarge, kSmall}) {
    const Recorded vector = Float32(Role::kGrad, {count}, std::span(values).first(count));
    const TraceStep step = StepOf(std::span(&vector, 1));
    const ChannelCurves counted = CurvesOf(vector);
    const ChannelCurves known = MeasureStep(step, questions, {.channels = true}).channels.front();
    EXPECT_TRUE(known.mean.empty() && known.worst.empty());
    EXPECT_EQ(known.channels, counted.channels);
    EXPECT_EQ(MeasureStep(step, {}, {.channels = true}).channels.front(), counted);
  }
  const Recorded nothing = Float32(Role::kGrad, {none.size()}, none);
  const TraceStep step = StepOf(std::span(&nothing, 1));
  EXPECT_FALSE(MeasureStep(step, questions, {.channels = true}).channels.front().known());
  EXPECT_FALSE(CurvesOf(nothing).known());
}

}  // namespace
}  // namespace dlsim
