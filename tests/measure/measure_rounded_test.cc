// SPDX-License-Identifier: Apache-2.0
// Chunks of finite values in every rounding mode: the kernels that round first, and what a chunk's
// extremes answer, equal the scalar reference, digit for digit, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "dlsim/simd.h"
#include "src/measure/measure_chunk.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/gradient_like.h"
#include "tests/support/on_target.h"
#include "tests/support/same_stats.h"

namespace dlsim {
namespace {

class MeasureRoundedOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, MeasureRoundedOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

std::vector<Conversion> AllConversionsTo(const Format& format) {
  std::vector<Conversion> conversions;
  for (const auto& [rounding, name] : EnumNames(Rounding{})) {
    const std::vector<Conversion> of_mode = ConversionsTo(format, rounding);
    conversions.insert(conversions.end(), of_mode.begin(), of_mode.end());
  }
  return conversions;
}

std::string Name(const Measurement& question) {
  const Conversion& conversion = question.conversion;
  return std::to_string(static_cast<int>(conversion.rounding)) + " overflow " +
         std::to_string(static_cast<int>(conversion.overflow)) + " subnormals " +
         std::to_string(static_cast<int>(conversion.subnormals)) + " scale " +
         std::to_string(std::log2(std::fabs(question.scale)));
}

// Adds a chunk's results to sums of 1 and 2 as the definition says.
void AccumulateByReference(std::span<const float> values, uint64_t first_index,
                           const Measurement& question, std::vector<float>& unscaled,
                           std::vector<float>& scaled) {
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const Rounding rounding = question.conversion.rounding;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t random =
        rounding == Rounding::kStochastic ? RandomBits(question.random, first_index + i) : 0;
    const uint32_t bits = std::bit_cast<uint32_t>(values[i] * question.scale);
    const uint32_t code = Encode(spec, rounding, bits, random).code;
    const float result = std::bit_cast<float>(Decode(spec, code));
    unscaled.push_back(1 + result * (1 / question.scale));
    scaled.push_back(2 + result);
  }
}

// Every NaN is the same, and so are both zeros: no sum of 1 or 2 tells them apart.
bool SameFloats(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

void ExpectRounded(std::span<const float> values, const Measurement& question) {
  SCOPED_TRACE("rounding " + Name(question));
  constexpr uint64_t kFirst = 4096;
  const TensorStats expected = MeasureChunkReference(values, kFirst, question);
  ChunkMeasurer chunk(values, kFirst);
  ExpectSameErrors(chunk.Measure(ChunkQuestion(question, Asked::kErrors)), expected);
  ExpectSame(chunk.Measure(ChunkQuestion(question)), expected);

  std::vector<float> unscaled(values.size(), 1.0f), scaled(values.size(), 2.0f);
  ExpectSame(MeasureAndAccumulateChunk(values, kFirst, question, {unscaled, scaled}), expected);
  std::vector<float> expected_unscaled, expected_scaled;
  AccumulateByReference(values, kFirst, question, expected_unscaled, expected_scaled);
  EXPECT_PRED2(SameFloats, unscaled, expected_unscaled);
  EXPECT_PRED2(SameFloats, scaled, expected_scaled);
}

// Some boundaries of a format, from the smallest up: pieces of them are small, normal, too large.
std::vector<float> SortedBoundaries(const Format& format) {
  std::vector<float> values;
  const std::vector<uint32_t> bits = BoundaryBits(format);
  const size_t stride = std::max<size_t>(1, bits.size() / 2000);
  for (size_t i = 0; i < bits.size(); i += i % 64 < 8 ? 1 : stride) {
    const float value = std::bit_cast<float>(bits[i]);
    if (std::isfinite(value)) values.push_back(value);
  }
  std::ranges::sort(values, {}, [](float value) { return std::fabs(value); });
  return values;
}

TEST_P(MeasureRoundedOnTarget, EqualsTheReferenceAtBoundariesInEveryMode) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    const std::vector<float> all = SortedBoundaries(format.format);
    const uint32_t max_bits = MakeCodecSpec({format.format}).plain_max_bits;
    const auto past = std::ranges::find_if(all, [&](float value) {
      return std::bit_cast<uint32_t>(std::fabs(value)) > max_bits + (1u << 24);
    });
    const size_t moderate = static_cast<size_t>(past - all.begin());
    const std::span<const float> values(all);
    for (const auto piece : {values.first(moderate / 4), values.subspan(moderate / 2, moderate / 4),
                             values.subspan(moderate * 3 / 4, moderate - moderate * 3 / 4),
                             values.last(std::min(values.size(), size_t{300}))}) {
      const std::span<const float> chunk = piece.first(std::min(piece.size(), size_t{701}));
      for (const Conversion& conversion : AllConversionsTo(format.format)) {
        for (const float scale : {1.0f, -1.25f}) ExpectRounded(chunk, {conversion, scale, {}});
      }
    }
  }
}

TEST_P(MeasureRoundedOnTarget, EqualsTheReferenceWhereFloat32RoundsProducts) {
  for (const char* name : {"bf16", "e8m2", "e8m20"}) {
    SCOPED_TRACE(name);
    const Format format = ParseFormat(name).format;
    for (const int k : {-1, -8, -61, -125, -126}) {
      const std::vector<float> values = TiesOfProducts(format, k);
      for (const Conversion& conversion : AllConversionsTo(format)) {
        ExpectRounded(values, {conversion, std::ldexp(1.0f, k), {}});
      }
    }
  }
}

TEST_P(MeasureRoundedOnTarget, EqualsTheReferenceAtEveryScaleInEveryMode) {
  std::vector<float> values = GradientLike(300, false);
  for (const float narrow : {0.0f, 1.0f}) {
    for (float& value : values) value = std::copysign(narrow + std::fabs(value), value);
    for (const char* name : {"fp16", "bf16", "fp8-e4m3", "dlfloat16", "e5m14", "e2m22"}) {
      SCOPED_TRACE(name);
      for (const Conversion& conversion : AllConversionsTo(ParseFormat(name).format)) {
        for (const float scale : {0x1p-149f, 0x1p-126f, 0x1p-40f, 0x1p-20f, 0x1p9f, 0x1p17f,
                                  0x1p60f, 0x1p120f, 0x1p127f, 2e15f, -0x1.8p-9f, -0x1p3f}) {
          ExpectRounded(values, {conversion, scale, {9, 5}});
        }
      }
    }
  }
}

TEST_P(MeasureRoundedOnTarget, EqualsTheReferenceForAllLengths) {
  const std::vector<float> values = GradientLike(5000, false);
  std::vector<size_t> lengths = {1023, 1024, 1025, 4095, 4096};
  for (size_t length = 0; length <= 70; ++length) lengths.push_back(length);
  for (const Rounding rounding : {Rounding::kTowardPositive, Rounding::kStochastic}) {
    for (const size_t length : lengths) {
      ExpectRounded(std::span(values).subspan(length % 7, length),
                    {{kCb16, rounding}, 8.0f, {3, 1}});
    }
  }
}

TEST_P(MeasureRoundedOnTarget, ZerosStayZeros) {
  const std::vector<float> zeros = {0.0f, -0.0f, 0.0f};
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    for (const Conversion& conversion : AllConversionsTo(format.format)) {
      ExpectRounded(zeros, {conversion, 3.0f, {2, 4}});
    }
  }
}

// The tests above mean little unless every kernel is asked.
TEST(MeasureRounded, ChunksAskEveryKernel) {
  std::set<std::tuple<bool, bool, RoundedResults>> kernels;
  for (const uint32_t smallest : {1u, 113u << 23}) {
    for (const float absmax : {1.0f, 1e6f}) {
      for (const Conversion& conversion : AllConversionsTo(kFp16)) {
        for (const float scale : {1.0f, 1.5f}) {
          const ChunkInputs inputs = {true, absmax, smallest - 1, 0, 1};
          const auto rounded = ChunkQuestion({conversion, scale, {}}).RoundedFor(inputs, false);
          ASSERT_NE(rounded.spec, nullptr);
          kernels.insert(
              {rounded.kernel.small, rounded.kernel.exact_errors, rounded.kernel.results});
        }
      }
    }
  }
  // With and without small results: finite and infinite ones, whose errors may be exact, or not,
  // and saturating ones.
  EXPECT_EQ(kernels.size(), 2 * (2 * 2 + 1u));
}

TEST(MeasureRounded, LeavesWhatItCannotTell) {
  const ChunkInputs beyond = {true, 0x1p126f, 1 << 23, 0, 1};
  const Conversion clamping = {kBf16, Rounding::kTowardZero, Overflow::kSaturate};
  const Measurement too_large = {clamping, 0x1.8p3f, {}};
  EXPECT_EQ(ChunkQuestion(too_large).RoundedFor(beyond, false).spec, nullptr);
  const Measurement no_reciprocal = {{kFp16, Rounding::kTowardZero}, 0x1p-149f, {}};
  EXPECT_EQ(ChunkQuestion(no_reciprocal).RoundedFor(beyond, false).spec, nullptr);
}

// Processors take long to multiply subnormal numbers.
TEST(MeasureRounded, MultipliesNoSubnormalNumbers) {
  const ChunkInputs small = {true, 1.0f, 0, 0, 1};
  for (const auto& [rounding, name] : EnumNames(Rounding{})) {
    const ChunkQuestion question({{kBf16, rounding}, 0x1p-100f, {}});
    EXPECT_EQ(question.RoundedFor(small, false).spec->rounded_product_bits, 101u << 23) << name;
    EXPECT_EQ(question.RoundedFor(small, true).spec->rounded_product_bits, 0u) << name;
  }
}

TEST_P(MeasureRoundedOnTarget, ExtremesAnswerForAWholeChunk) {
  std::vector<float> values = {1.0f, -1.5f, 0.0f, 3.0f, -0.0f};
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    if (format.format.denormals == Denormals::kNone) continue;
    const int high = std::ilogb(MaxFinite(format.format)) + 1;
    const int low = std::ilogb(MinPositive(format.format)) - 2;
    for (int k = -1; k <= 1; ++k) {
      for (const Conversion& conversion : AllConversionsTo(format.format)) {
        for (const int exponent : {high + k, low + k}) {
          const float scale = std::ldexp(1.0f, exponent);
          if (std::isinf(scale) || scale == 0) continue;
          ExpectRounded(values, {conversion, scale, {}});
        }
      }
    }
  }
}

TEST(MeasureRounded, ExtremesTellOnlyWhatIsSure) {
  const ChunkInputs inputs = MeasureInputs(std::vector<float>{1.0f, 1.5f});
  if (!inputs.finite) GTEST_SKIP() << "a target without these kernels";
  const auto known = [&](Overflow overflow, float scale) {
    const Conversion conversion = {kFp16, Rounding::kNearestEven, overflow};
    return ChunkQuestion({conversion, scale, {}}).AnswerFrom(inputs, 2).has_value();
  };
  EXPECT_TRUE(known(Overflow::kInfinity, 65536.0f));
  EXPECT_FALSE(known(Overflow::kInfinity, 65000.0f));
  EXPECT_FALSE(known(Overflow::kSaturate, 65536.0f));
  EXPECT_TRUE(known(Overflow::kInfinity, 0x1p-26f));
  EXPECT_FALSE(known(Overflow::kInfinity, 0x1p-25f));
}

}  // namespace
}  // namespace dlsim
