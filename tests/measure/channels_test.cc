// SPDX-License-Identifier: Apache-2.0
// What channels lose: the curves against harm by definition, value by value.
#include "dlsim/measure_step.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/simd.h"
#include "tests/support/on_target.h"

namespace dlsim {
namespace {

using Shape = std::vector<uint64_t>;

TraceTensor TensorOf(Role role, const Shape& shape, std::span<const float> values) {
  TraceTensor tensor;
  tensor.name = role == Role::kGrad ? "w.grad" : "fc.act_grad";
  tensor.role = role;
  tensor.shape = shape;
  tensor.elements = values.size();
  tensor.memory = reinterpret_cast<const std::byte*>(values.data());
  return tensor;
}

TraceStep StepOf(std::vector<TraceTensor> tensors) {
  TraceStep step;
  step.recordings.emplace_back().tensors = std::move(tensors);
  return step;
}

ChannelCurves CurvesOf(Role role, const Shape& shape, std::span<const float> values) {
  return MeasureChannels(StepOf({TensorOf(role, shape, values)}), Accumulation::kQuantizeThenSum)
      .front();
}

// Values of channels whose sizes are many binades apart.
std::vector<float> MakeValues(const ChannelLayout& layout, double binades) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> size(-binades, 0);
  std::vector<float> sizes;
  for (uint64_t c = 0; c < layout.channels; ++c) {
    sizes.push_back(static_cast<float>(std::exp2(size(random))));
  }
  std::vector<float> values;
  for (uint64_t i = 0; i < layout.outer * layout.channels * layout.inner; ++i) {
    values.push_back(normal(random) * sizes[i / layout.inner % layout.channels]);
  }
  return values;
}

// With what the metadata of its recording say of its features.
ChannelCurves CurvesWith(const std::string& axes, const Shape& shape,
                         std::span<const float> values) {
  TraceStep step = StepOf({TensorOf(Role::kActGrad, shape, values)});
  step.recordings[0].metadata["feature_axes"] = axes;
  return MeasureChannels(step, Accumulation::kQuantizeThenSum).front();
}

struct Harm {
  double mean = 0, worst = 0;
};

// By definition, less what rounding loses at any scale.
Harm HarmOf(const ChannelLayout& layout, const std::vector<float>& values,
            const Conversion& conversion, float scale) {
  std::vector<double> errors(layout.channels), squares(layout.channels);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = i / layout.inner % layout.channels;
    uint16_t code = 0;
    const float scaled = values[i] * scale;
    EncodeArray({conversion}, std::span(&scaled, 1), std::span(&code, 1));
    float result = 0;
    DecodeArray(conversion.format, std::span<const uint16_t>(&code, 1), std::span(&result, 1));
    errors[channel] += std::pow(double{result} / scale - values[i], 2);
    squares[channel] += std::pow(double{values[i]}, 2);
  }
  const double floor = std::ldexp(1.0 / 3, -2 * (conversion.format.mantissa_bits + 1));
  Harm harm;
  for (size_t c = 0; c < layout.channels; ++c) {
    const double of_channel = std::clamp(errors[c] / squares[c] - floor, 0.0, 1.0);
    harm.mean += of_channel / static_cast<double>(layout.channels);
    harm.worst = std::max(harm.worst, of_channel);
  }
  return harm;
}

TEST(ChannelsTest, TheRecordingSaysWhichAxisHoldsFeatures) {
  const std::vector<float> values = MakeValues({3, 5, 8}, 20);
  const ChannelCurves images = CurvesOf(Role::kActGrad, {3, 5, 8, 1}, values);
  EXPECT_EQ(CurvesWith("? other.act_grad\n1 fc.act_grad", {3, 5, 8}, values), images);
  EXPECT_NE(CurvesOf(Role::kActGrad, {3, 5, 8}, values), images);
  EXPECT_EQ(CurvesWith("0 fc.act_grad", {15, 8}, values), CurvesOf(Role::kGrad, {15, 8}, values));
  EXPECT_EQ(CurvesWith("3 fc.act_grad", {3, 5, 4, 2}, values),
            CurvesOf(Role::kActGrad, {15, 4, 2}, values));
  EXPECT_FALSE(CurvesWith("? fc.act_grad", {3, 5, 8}, values).known());
  EXPECT_EQ(CurvesWith("1", {3, 5, 8}, values), CurvesOf(Role::kActGrad, {3, 5, 8}, values));
}

TEST(Channels, AreRowsOfParametersAndFeaturesOfActivations) {
  EXPECT_EQ(LayoutOf(Role::kGrad, {6, 4, 3, 3}), (ChannelLayout{1, 6, 36}));
  EXPECT_EQ(LayoutOf(Role::kGrad, {5}), (ChannelLayout{1, 1, 5}));
  EXPECT_EQ(LayoutOf(Role::kGrad, {}), (ChannelLayout{1, 1, 1}));
  EXPECT_EQ(LayoutOf(Role::kActGrad, {8, 16, 32}), (ChannelLayout{128, 32, 1}));
  EXPECT_EQ(LayoutOf(Role::kActGrad, {8, 6, 5, 7}), (ChannelLayout{8, 6, 35}));
  EXPECT_EQ(LayoutOf(Role::kActGrad, {9}), (ChannelLayout{1, 1, 9}));
}

TEST(Channels, LoseWhatTheirValuesLose) {
  const struct {
    Role role;
    Shape shape;
    double within;
  } cases[] = {{Role::kGrad, {48, 64}, 0.006},
               {Role::kGrad, {300, 1}, 0.006},
               {Role::kActGrad, {10, 8, 24}, 0.006},
               {Role::kActGrad, {6, 10, 5, 7}, 0.006}};
  for (const auto& [role, shape, within] : cases) {
    const ChannelLayout layout = LayoutOf(role, shape);
    const std::vector<float> values = MakeValues(layout, 24);
    const ChannelCurves curves = CurvesOf(role, shape, values);
    EXPECT_EQ(curves.channels, layout.channels);
    for (const Format& format : {kFp16, kCb16}) {
      for (int exponent = -30; exponent <= 10; exponent += 2) {
        const float scale = std::ldexp(1.0f, exponent + (format == kCb16 ? -15 : 0));
        const Conversion conversion = {format};
        const double quantum = *LogQuantum(conversion, scale);
        const Harm harm = HarmOf(layout, values, conversion, scale);
        EXPECT_NEAR(curves.MeanAt(quantum), harm.mean, within) << exponent;
        EXPECT_NEAR(curves.WorstAt(quantum), harm.worst, 0.02) << exponent;
      }
    }
  }
}

TEST(Channels, KnowWhatBecomesZeroExactly) {
  // One channel becomes zero at a quantum above 2, the other above 2^-9.
  const std::vector<float> values = {1, 1, 0x1p-10f, 0x1p-10f};
  const ChannelCurves curves = CurvesOf(Role::kGrad, {2, 2}, values);
  EXPECT_EQ(curves.MeanAt(2), 1);
  EXPECT_EQ(curves.WorstAt(-8), 1);
  EXPECT_NEAR(curves.MeanAt(-8), 0.5, 0.006);
  EXPECT_EQ(curves.MeanAt(-30), 0);
  EXPECT_EQ(curves.MeanAt(200), 1);
}

TEST(Channels, OfZerosInfinitiesAndNanDoNotCount) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(CurvesOf(Role::kGrad, {2, 2}, std::vector<float>{0, -0.0f, inf, NAN}).known());
  EXPECT_EQ(CurvesOf(Role::kGrad, {2, 2}, std::vector<float>{0, 0, inf, 3}).channels, 1U);
  TraceTensor nothing = TensorOf(Role::kGrad, {3, 0}, {});
  nothing.memory = nullptr;  // and nothing to read
  EXPECT_FALSE(MeasureChannels(StepOf({nothing}), {}).front().known());
  EXPECT_FALSE(CurvesOf(Role::kGrad, {0, 2}, {}).known());
}

// As recorded in other types, with a loss scale, from memory or from a file.
TEST(Channels, AreThoseOfAnyTypeThatHoldsTheValues) {
  const Shape shape = {90, 100};
  std::vector<float> values = MakeValues(LayoutOf(Role::kGrad, shape), 8);
  std::vector<uint16_t> codes(values.size());
  EncodeArray({{kBf16}}, values, std::span<uint16_t>(codes));
  DecodeArray(kBf16, std::span<const uint16_t>(codes), std::span(values));
  std::vector<double> doubles(values.begin(), values.end());
  for (double& value : doubles) value *= 1024;
  const ChannelCurves expected = CurvesOf(Role::kGrad, shape, values);
  EXPECT_EQ(expected.channels, 90U);
  const auto curves = [&](DType dtype, const void* data, float scale, bool in_memory) {
    TraceTensor tensor = TensorOf(Role::kGrad, shape, values);
    tensor.dtype = dtype;
    tensor.memory = static_cast<const std::byte*>(data);
    if (!in_memory) {
      tensor.read = [from = tensor.memory](uint64_t offset, std::span<std::byte> out) {
        std::copy_n(from + offset, out.size(), out.begin());
      };
      tensor.memory = nullptr;
    }
    TraceStep step = StepOf({tensor});
    step.recordings[0].grad_scale = scale;
    return MeasureChannels(step, Accumulation::kQuantizeThenSum).front();
  };
  for (const bool in_memory : {true, false}) {
    EXPECT_EQ(curves(DType::kF32, values.data(), 1, in_memory), expected);
    EXPECT_EQ(curves(DType::kBF16, codes.data(), 1, in_memory), expected);
    EXPECT_EQ(curves(DType::kF64, doubles.data(), 1024, in_memory), expected);
  }
}

TEST(Channels, OfMicroStepsAddUp) {
  const std::vector<float> first = {1, 0x1p-20f}, second = {-1, 0x1p-20f};
  TraceStep step = StepOf({TensorOf(Role::kGrad, {2, 1}, first)});
  step.recordings.push_back(StepOf({TensorOf(Role::kGrad, {2, 1}, second)}).recordings.front());
  const auto curves = [&](Accumulation how) { return MeasureChannels(step, how).front(); };
  EXPECT_EQ(curves(Accumulation::kQuantizeThenSum), CurvesOf(Role::kGrad, {2, 1}, first));
  EXPECT_EQ(curves(Accumulation::kSumThenQuantize).channels, 1U);
  step.recordings[1].tensors[0].shape = {1, 2};
  EXPECT_FALSE(curves(Accumulation::kQuantizeThenSum).known());
}

TEST(Channels, AreTheSameForAnyNumberOfThreads) {
  const Shape rows = {1200, 1024}, features = {4, 400, 1000};
  const std::vector<float> of_rows = MakeValues(LayoutOf(Role::kGrad, rows), 20);
  const std::vector<float> of_features = MakeValues(LayoutOf(Role::kActGrad, features), 20);
  const TraceStep step = StepOf(
      {TensorOf(Role::kGrad, rows, of_rows), TensorOf(Role::kActGrad, features, of_features)});
  const auto measured = [&](int threads) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    std::vector<ChannelCurves> curves = MeasureChannels(step, Accumulation::kQuantizeThenSum);
    omp_set_num_threads(before);
    return curves;
  };
  const std::vector<ChannelCurves> one = measured(1);
  EXPECT_EQ(one[0].channels, 1200U);
  EXPECT_EQ(one[1].channels, 1000U);
  EXPECT_EQ(measured(3), one);
}

class ChannelsOnTarget : public OnTarget {};

// Long and short rows, single values, subnormal numbers, and magnitudes all over the range.
TEST_P(ChannelsOnTarget, AreThoseOfTheFallback) {
  std::mt19937 random(3);
  const auto curves = [](const Shape& shape, std::span<const float> values) {
    return CurvesOf(Role::kGrad, shape, values);
  };
  for (const Shape& shape :
       {Shape{40, 300}, Shape{500, 51}, Shape{700, 8}, Shape{900, 3}, Shape{2000, 1}}) {
    for (const int most : {140, 90, 254}) {
      std::uniform_int_distribution<uint32_t> exponent(most == 254 ? 0 : 90, most), rest;
      std::vector<float> values(shape[0] * shape[1]);
      for (float& value : values) {
        value = std::bit_cast<float>(exponent(random) << 23 | (rest(random) & 0x807FFFFF));
      }
      UseSimdTarget(GetParam());
      const ChannelCurves of_target = curves(shape, values);
      UseSimdTarget(SupportedSimdTargets().back());
      EXPECT_EQ(of_target, curves(shape, values)) << shape[1] << " values below 2^" << most - 126;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(AllTargets, ChannelsOnTarget, testing::ValuesIn(SupportedSimdTargets()));

TEST(Channels, TellNothingOfOtherRoundings) {
  EXPECT_FALSE(LogQuantum({kFp16, Rounding::kStochastic}, 1));
  EXPECT_FALSE(LogQuantum(
      {kFp16, Rounding::kNearestEven, Overflow::kInfinity, Subnormals::kFlushToZero}, 1));
  EXPECT_EQ(LogQuantum({kFp16}, 2), -25);
  EXPECT_EQ(LogQuantum({kBf16}, 1), -133);
  EXPECT_EQ(LogQuantum({kCb16}, 0.5), -38);
}

}  // namespace
}  // namespace dlsim
