// SPDX-License-Identifier: Apache-2.0
// Scaled formats equal the scalar reference, element by element, for every SIMD target.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/scaled_codec.h"
#include "src/scaled/group_scale.h"
#include "tests/support/boundaries.h"
#include "tests/support/on_target.h"
#include "tests/support/same_stats.h"
#include "tests/support/special_values.h"

namespace dlsim {
namespace {

class ScaledOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, ScaledOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

CodecSpec MakeElementSpec(const Format& element) {
  return MakeCodecSpec({element, Rounding::kNearestEven, Overflow::kSaturate});
}

// What a matrix becomes by definition, group by group and element by element.
struct Reference {
  ScaledCodes codes;
  std::vector<float> scaled, decoded;
};

float LargestOf(std::span<const float> values, const std::vector<size_t>& group) {
  float largest = 0;
  for (const size_t i : group) {
    if (std::fabs(values[i]) > largest) largest = std::fabs(values[i]);
  }
  return largest;
}

// The places of the elements of each group.
std::vector<std::vector<size_t>> GroupsOf(const ScaledFormat& format, const MatrixView& matrix,
                                          BlockAxis axis) {
  const uint64_t rows = matrix.rows, columns = matrix.columns;
  uint64_t height = rows, width = columns;
  if (format.sharing != Sharing::kTensor) {
    if (axis == BlockAxis::kRow) height = 1;
    if (axis == BlockAxis::kColumn) width = 1;
  }
  if (format.sharing == Sharing::kBlock) {
    if (axis != BlockAxis::kColumn) width = format.block;
    if (axis != BlockAxis::kRow) height = format.block;
  }
  const uint64_t across = (columns + width - 1) / width;
  std::vector<std::vector<size_t>> groups((rows + height - 1) / height * across);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    groups[i / columns / height * across + i % columns / width].push_back(i);
  }
  return groups;
}

Reference Convert(const ScaledFormat& format, const MatrixView& matrix, BlockAxis axis) {
  const CodecSpec spec = MakeElementSpec(format.forward);
  std::vector<size_t> all(matrix.values.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const GroupScales scales(format, format.forward, LargestOf(matrix.values, all));
  Reference reference;
  reference.codes.codes.resize(all.size());
  reference.codes.tensor_scale = scales.tensor_scale();
  reference.scaled = reference.decoded = std::vector<float>(all.size());
  for (const std::vector<size_t>& group : GroupsOf(format, matrix, axis)) {
    const GroupScale scale = scales.Of(LargestOf(matrix.values, group));
    reference.codes.scales.push_back(scale.code);
    for (const size_t i : group) {
      const float scaled = matrix.values[i] * scale.encode;
      const uint32_t code = Encode(spec, Rounding::kNearestEven, BitsOf(scaled)).code;
      reference.scaled[i] = scaled;
      reference.codes.codes[i] = static_cast<uint8_t>(code);
      reference.decoded[i] = std::bit_cast<float>(Decode(spec, code)) * scale.decode;
    }
  }
  return reference;
}

TensorStats StatsOf(const ScaledFormat& format, const MatrixView& m, const Reference& reference) {
  const CodecSpec spec = MakeElementSpec(format.forward);
  TensorStats stats;
  for (size_t i = 0; i < m.values.size(); ++i) {
    const float value = m.values[i], decoded = reference.decoded[i];
    ++stats.elements;
    stats.nonfinite_outputs += !std::isfinite(decoded);
    stats.nan += std::isnan(value);
    stats.inf += std::isinf(value);
    if (!std::isfinite(value)) continue;
    const double input = value, output = decoded, error = output - input;
    stats.zeros += value == 0;
    stats.absmax = std::fmax(stats.absmax, std::fabs(value));
    stats.sum_of_squares += input * input;
    stats.quantized_sum_of_squares += output * output;
    if (std::isfinite(decoded)) stats.error_sum_of_squares += error * error;
    stats.overflow += std::fabs(reference.scaled[i]) > MaxFinite(format.forward);
    const bool vanished = value != 0 && decoded == 0;
    stats.underflow += vanished;
    if (vanished) stats.underflow_sum_of_squares += input * input;
    stats.subnormal +=
        decoded != 0 && Classify(spec, reference.codes.codes[i]) == CodeClass::kSubnormal;
  }
  return stats;
}

// Of many magnitudes, with zeros; some with float32's subnormals, and some with infinities and NaN.
std::vector<float> Drawn(uint64_t count, uint32_t seed, bool tiny, bool nonfinite) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (uint64_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random() % 24) - (tiny ? 150 : 12);
    values.push_back(i % 19 == 7 ? 0 : std::ldexp(normal(random), exponent));
    if (nonfinite && i % 97 == 40) values.back() = i % 2 == 0 ? kInf : -kInf;
    if (nonfinite && i % 89 == 30)
      values.back() = std::bit_cast<float>(0xFF800001u + static_cast<uint32_t>(random() % 64));
  }
  return values;
}

void ExpectAsReference(const ScaledFormat& format, const MatrixView& matrix, BlockAxis axis) {
  const Reference expected = Convert(format, matrix, axis);
  const ScaledCodes codes = EncodeScaled(format, format.forward, matrix, axis);
  ASSERT_EQ(codes.codes, expected.codes.codes);
  ASSERT_EQ(codes.scales, expected.codes.scales);
  ASSERT_EQ(BitsOf(codes.tensor_scale), BitsOf(expected.codes.tensor_scale));
  std::vector<float> decoded(matrix.values.size());
  DecodeScaled(format, format.forward, codes, matrix.rows, matrix.columns, axis, decoded);
  for (size_t i = 0; i < decoded.size(); ++i) {
    if (std::isnan(decoded[i]) && std::isnan(expected.decoded[i])) continue;
    ASSERT_EQ(BitsOf(decoded[i]), BitsOf(expected.decoded[i])) << i;
  }
  const ScaledStats found =
      MeasureScaled(format, format.forward, matrix, axis, MatrixChannels::kRows);
  ExpectSame(found.stats, StatsOf(format, matrix, expected));
}

TEST_P(ScaledOnTarget, MatricesOfAnyShapeEqualTheReference) {
  for (std::string name : {"fp8-current", "fp8-current:forward=e5m2", "fp8-rowwise", "fp8-block",
                           "mxfp8", "mxfp8:forward=e5m2,rule=floor", "mxfp8:block=7,rule=nearest",
                           "mxfp6-e2m3", "mxfp6-e3m2:rule=even", "mxfp4", "nvfp4"}) {
    const ScaledFormat format = ParseScaledFormat(name).format;
    for (const auto& [rows, columns] : {std::pair(1, 1), {3, 33}, {37, 5}, {1, 1100}, {2, 513}}) {
      for (const int kind : {0, 1, 2, 3}) {
        const uint64_t count = static_cast<uint64_t>(rows * columns);
        const std::vector<float> values = Drawn(count, 7, (kind & 1) != 0, (kind & 2) != 0);
        const MatrixView matrix = {values, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns)};
        for (const BlockAxis axis : {BlockAxis::kRow, BlockAxis::kColumn, BlockAxis::kBoth}) {
          if (axis == BlockAxis::kBoth && format.sharing != Sharing::kBlock) continue;
          SCOPED_TRACE(name + " " + std::to_string(rows) + " x " + std::to_string(columns) +
                       " kind " + std::to_string(kind));
          ASSERT_NO_FATAL_FAILURE(ExpectAsReference(format, matrix, axis));
        }
      }
    }
  }
}

TEST_P(ScaledOnTarget, ElementsEqualTheReference) {
  const ScaledFormat format = ParseScaledFormat("fp8-current").format;
  for (const Format& element : {kE4m3, kE5m2, kE2m3, kE3m2, kE2m1}) {
    std::vector<uint32_t> bits = StratifiedBits(150011);
    const std::vector<uint32_t> boundaries = BoundaryBits(element);
    bits.insert(bits.end(), boundaries.begin(), boundaries.end());
    const std::vector<float> values = AsFloats(bits);
    const MatrixView matrix = {values, 1, values.size()};
    const CodecSpec spec = MakeElementSpec(element);
    const ScaledCodes codes = EncodeScaled(format, element, matrix, BlockAxis::kRow, 1.0f);
    std::vector<float> decoded(values.size());
    DecodeScaled(format, element, codes, 1, values.size(), BlockAxis::kRow, decoded);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes.codes[i], Encode(spec, Rounding::kNearestEven, bits[i]).code) << bits[i];
      ASSERT_EQ(BitsOf(decoded[i]), Decode(spec, codes.codes[i])) << bits[i];
    }
  }
}

TEST_P(ScaledOnTarget, LargestMagnitudesLeaveOutNan) {
  const ScaledFormat format = ParseScaledFormat("fp8-current").format;
  for (size_t count = 1; count < 70; ++count) {
    std::vector<float> values(count, -1.0f);
    const auto expect = [&](float largest) {
      const ScaledCodes codes = EncodeScaled(format, kE4m3, {values, 1, count}, BlockAxis::kRow);
      EXPECT_EQ(std::bit_cast<float>(codes.scales[0]), ScaleFor(format, kE4m3, largest));
    };
    for (size_t i = 0; i < count; ++i) {
      expect(1);
      values[i] = -kQuietNan;
      expect(count == 1 ? 0 : 1);
      values[i] = -3.0f;
      expect(3);
      values[i] = -1.0f;
    }
  }
}

}  // namespace
}  // namespace dlsim
