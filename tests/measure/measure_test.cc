// SPDX-License-Identifier: Apache-2.0
// Measuring equals the scalar reference, digit for digit, for every target and number of threads.
#include "dlsim/measure.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dlsim/convert.h"
#include "src/measure/measure_chunk.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/gradient_like.h"
#include "tests/support/measure_reference.h"
#include "tests/support/on_target.h"
#include "tests/support/same_stats.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace dlsim {
namespace {

// The definition of docs/numerics.md, in long double.
TEST(Measure, TheErrorIsThatOfTheUnscaledResult) {
  const std::vector<float> values = GradientLike(20000, true);
  for (const NamedFormat& format : FormatsUnderTest()) {
    const CodecSpec spec = MakeCodecSpec({format.format});
    for (const float scale : {0x1p-14f, 1.0f, 3.0f, 32768.0f, 2e15f}) {
      long double expected = 0;
      for (const float value : values) {
        const uint32_t scaled = std::bit_cast<uint32_t>(value * scale);
        const float result =
            std::bit_cast<float>(Decode(spec, Encode(spec, Rounding::kNearestEven, scaled).code));
        if (!std::isfinite(value) || !std::isfinite(result)) continue;
        const long double error = static_cast<long double>(result) / scale - value;
        expected += error * error;
      }
      const double measured = Measure(values, {{format.format}, scale}).error_sum_of_squares;
      EXPECT_NEAR(measured, static_cast<double>(expected), 1e-9 * static_cast<double>(expected))
          << format.name << " at " << scale;
    }
  }
}

class MeasureOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, MeasureOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

TEST_P(MeasureOnTarget, EqualsTheReferenceForEveryFormatModeAndScale) {
  const std::vector<float> values = GradientLike(3000, true);
  for (const NamedFormat& format : FormatsUnderTest()) {
    for (int mode = 0; mode < 6; ++mode) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const float scale : {0.0f, 0x1p-14f, 1.0f, 32768.0f, 2e15f, 3e38f,
                                  std::numeric_limits<float>::infinity()}) {
          const ArrayConversion question = {
              {format.format, static_cast<Rounding>(mode), overflow}, scale, {99, 5}};
          SCOPED_TRACE(format.name + " mode " + std::to_string(mode) + " scale " +
                       std::to_string(scale));
          ExpectSame(MeasureChunk(values, 4096, question),
                     MeasureChunkReference(values, 4096, question));
        }
      }
    }
  }
}

TEST_P(MeasureOnTarget, EqualsTheReferenceOnBoundariesAndAllLengths) {
  std::vector<float> values;
  for (const uint32_t bits : BoundaryBits(kFp16)) values.push_back(std::bit_cast<float>(bits));
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    const ArrayConversion question = {{format}, 2.0f};
    for (size_t begin = 0; begin + kChunkElements <= values.size(); begin += kChunkElements) {
      const auto chunk = std::span<const float>(values).subspan(begin, kChunkElements);
      ExpectSame(MeasureChunk(chunk, 0, question), MeasureChunkReference(chunk, 0, question));
    }
    for (size_t length = 0; length < 100; ++length) {
      const auto chunk = std::span<const float>(values).subspan(length, length);
      ExpectSame(MeasureChunk(chunk, 0, question), MeasureChunkReference(chunk, 0, question));
    }
  }
}

// The measurement of an array by its definition.
TensorStats MeasureByReference(std::span<const float> values, const ArrayConversion& question) {
  TensorStats total;
  for (size_t block = 0; block < values.size(); block += 65536) {
    TensorStats of_block;
    const size_t end = std::min(values.size(), block + 65536);
    for (size_t at = block; at < end; at += kChunkElements) {
      const size_t length = std::min(kChunkElements, end - at);
      of_block.Merge(MeasureChunkReference(values.subspan(at, length), at, question));
    }
    total.Merge(of_block);
  }
  return total;
}

// Scales at both ends of float32, and sizes of values to go with them.
TEST_P(MeasureOnTarget, EqualsTheReferenceOnFiniteChunksAtEveryScale) {
  const std::vector<float> values = GradientLike(1030, false);
  for (const NamedFormat& format : FormatsUnderTest()) {
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      const Conversion conversion = {format.format, Rounding::kNearestEven, Overflow::kInfinity,
                                     subnormals};
      for (const float scale :
           {0x1p-149f, 0x1p-127f, 0x1p-126f, 0x1p-100f, 0x1p-60f, 0x1p-14f, 0.5f, 1.0f, 2.0f, 3.0f,
            0x1p15f, 2e15f, 0x1p60f, 0x1p100f, 0x1p127f, -16.0f, -3.0f}) {
        SCOPED_TRACE(format.name + " scale " + std::to_string(std::log2(std::fabs(scale))));
        for (const float size : {0x1p-120f, 0x1p-40f, 0x1p-10f, 1.0f, 0x1p60f, 0x1p110f}) {
          std::vector<float> sized(values.size());
          for (size_t i = 0; i < values.size(); ++i) sized[i] = values[i] * size;
          ExpectSame(MeasureChunk(sized, 0, {conversion, scale, {}}),
                     MeasureChunkReference(sized, 0, {conversion, scale, {}}));
        }
      }
    }
  }
}

TEST_P(MeasureOnTarget, EqualsTheReferenceOnFiniteBoundariesOfEveryFormat) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    const uint32_t overflow_free = MakeCodecSpec({format.format}).max_bits;
    for (const int k : {0, 1, -3, 15}) {
      std::vector<float> values;
      for (const uint32_t bits : BoundaryBits(format.format)) {
        if ((bits & 0x7FFFFFFF) <= overflow_free) {
          values.push_back(std::ldexp(std::bit_cast<float>(bits), -k));
        }
      }
      SCOPED_TRACE(format.name + " scale 2^" + std::to_string(k));
      const ArrayConversion question = {{format.format}, std::ldexp(1.0f, k), {}};
      ExpectSame(Measure(values, question), MeasureByReference(values, question));
    }
  }
}

TEST_P(MeasureOnTarget, EqualsTheReferenceForAllLengthsAndAlignments) {
  const std::vector<float> values = GradientLike(65600, false);
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    const ArrayConversion question = {{format}, 8.0f, {}};
    std::vector<size_t> lengths = {4095, 4096, 4097, 65535, 65536, 65537};
    for (size_t length = 0; length <= 100; ++length) lengths.push_back(length);
    for (const size_t length : lengths) {
      const auto part = std::span(values).subspan(length % 7, length);
      ExpectSame(Measure(part, question), MeasureByReference(part, question));
    }
  }
}

TEST_P(MeasureOnTarget, AccumulatesUnscaledResultsInFloat32) {
  const std::vector<float> values = GradientLike(1000, false);
  const ArrayConversion question = {{kCb16}, 1024.0f};
  std::vector<float> sums(values.size(), 1.0f), scaled_sums(values.size(), 2.0f);
  const AccumulatedChunk into = {sums, scaled_sums};
  ExpectSame(MeasureChunk(values, 0, question, &into), MeasureChunkReference(values, 0, question));
  const CodecSpec spec = MakeCodecSpec({kCb16});
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * 1024.0f);
    const uint32_t code = Encode(spec, Rounding::kNearestEven, scaled).code;
    ASSERT_EQ(sums[i], 1.0f + std::bit_cast<float>(Decode(spec, code)) / 1024.0f);
    ASSERT_EQ(scaled_sums[i], 2.0f + std::bit_cast<float>(Decode(spec, code)));
  }
}

TEST(Measure, OnePassOverManyBlocksEqualsChunksMergedInOrder) {
  const std::vector<float> values = GradientLike(300001, true);
  const std::vector<ArrayConversion> questions = {{{kFp16}, 1.0f},
                                                  {{kCb16, Rounding::kStochastic}, 8.0f, {1, 2}}};
  const std::vector<TensorStats> together = Measure(values, questions);
  for (size_t q = 0; q < questions.size(); ++q) {
    const TensorStats total = MeasureByReference(values, questions[q]);
    ExpectSame(together[q], total);
    ExpectSame(Measure(values, questions[q]), total);
  }
}

TEST(Measure, KeepsSubnormalsWhateverTheCallersEnvironment) {
  const std::vector<float> values(300000, 1e-39f);
  std::fenv_t saved;
  std::fegetenv(&saved);
  std::fesetround(FE_UPWARD);
#ifdef __x86_64__
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zeros
#endif
  const TensorStats stats = Measure(values, ArrayConversion{{kBf16}, 3.0f});
  std::fesetenv(&saved);
  EXPECT_EQ(stats.underflow, 0u);
  EXPECT_EQ(stats.sum_of_squares, Measure(values, ArrayConversion{{kBf16}, 3.0f}).sum_of_squares);
}

TEST(Measure, CountsWhatTheDefinitionsSay) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,    -0.0f,   1.0f,   0x1p-25f, -0x1p-26f, 0x1p-20f,
                                     65519.f, 65520.f, -1e30f, inf,      -inf,      std::nanf("")};
  const TensorStats stats = Measure(values, ArrayConversion{{kFp16}});
  EXPECT_EQ(stats.elements, 12u);
  EXPECT_EQ(stats.zeros, 2u);
  EXPECT_EQ(stats.inf, 2u);
  EXPECT_EQ(stats.nan, 1u);
  EXPECT_EQ(stats.nonfinite(), 3u);
  EXPECT_EQ(stats.underflow, 2u) << "a tie rounds to zero; -2^-26 becomes -0";
  EXPECT_EQ(stats.subnormal, 1u);
  EXPECT_EQ(stats.overflow, 2u);
  EXPECT_EQ(stats.nonfinite_outputs, 5u);
  EXPECT_EQ(stats.absmax, 1e30f);
  EXPECT_DOUBLE_EQ(stats.underflow_fraction(), 2.0 / 7);
  EXPECT_DOUBLE_EQ(stats.energy_lost(), (0x1p-50 + 0x1p-52) / stats.sum_of_squares);
  EXPECT_EQ(Measure({}, ArrayConversion{{kFp16}}).elements, 0u);
}

}  // namespace
}  // namespace dlsim
