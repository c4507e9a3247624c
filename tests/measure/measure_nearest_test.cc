// SPDX-License-Identifier: Apache-2.0
// Chunks of finite values rounded to nearest even: every kernel, and what questions share, equal
// the scalar reference, digit for digit, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
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

class MeasureNearestOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, MeasureNearestOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

constexpr Rounding kNearestEven = Rounding::kNearestEven;

void ExpectAsReference(ChunkMeasurer& chunk, std::span<const float> values,
                       const Measurement& question) {
  SCOPED_TRACE(std::to_string(question.scale) + " overflow " +
               std::to_string(static_cast<int>(question.conversion.overflow)) + " subnormals " +
               std::to_string(static_cast<int>(question.conversion.subnormals)));
  const TensorStats expected = MeasureChunkReference(values, 0, question);
  ExpectSameErrors(chunk.Measure(ChunkQuestion(question, Asked::kErrors)), expected);
  ExpectSame(chunk.Measure(ChunkQuestion(question)), expected);
}

TEST_P(MeasureNearestOnTarget, EqualsTheReferenceWhereResultsOverflow) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    const uint32_t beyond = MakeCodecSpec({format.format}).plain_max_bits + (1u << 24);
    for (const int k : {0, 1, -3, 15}) {
      std::vector<float> values;
      for (const uint32_t bits : BoundaryBits(format.format)) {
        if (values.size() < kChunkElements && (bits & 0x7FFFFFFF) <= beyond) {
          values.insert(values.begin(), std::ldexp(std::bit_cast<float>(bits), -k));
        }
      }
      ChunkMeasurer chunk(values, 0);
      for (const Conversion& conversion : ConversionsTo(format.format, kNearestEven)) {
        ExpectAsReference(chunk, values, {conversion, std::ldexp(1.0f, k), {}});
        ExpectAsReference(chunk, values, {conversion, std::ldexp(1.25f, k), {}});
      }
    }
  }
}

// Chunks of one size each: all normal, with subnormal results, with zeros, with overflow.
TEST_P(MeasureNearestOnTarget, ManyQuestionsShareAChunk) {
  std::vector<float> values = GradientLike(1000, false);
  for (const float narrow : {0.0f, 1.0f}) {
    for (float& value : values) value = std::copysign(narrow + std::fabs(value), value);
    ChunkMeasurer chunk(values, 0);
    for (const char* name : {"fp16", "tf32", "cb16", "bf16", "fp8-e4m3"}) {
      for (const Conversion& conversion : ConversionsTo(ParseFormat(name).format, kNearestEven)) {
        for (int k = -30; k <= 60; ++k) {
          ExpectAsReference(chunk, values, {conversion, std::ldexp(1.0f, k), {}});
        }
        ExpectAsReference(chunk, values, {conversion, 2e15f, {}});
        ExpectAsReference(chunk, values, {conversion, -0x1.8p-9f, {}});
      }
    }
  }
}

TEST_P(MeasureNearestOnTarget, EqualsTheReferenceWhereFloat32RoundsProducts) {
  for (const char* name : {"bf16", "tf32", "e8m2", "e8m5", "e8m20"}) {
    SCOPED_TRACE(name);
    const Format format = ParseFormat(name).format;
    for (const int k : {-7, -8, -9, -24, -61, -100, -119, -125, -126}) {
      const std::vector<float> values = TiesOfProducts(format, k);
      const int last = 1 - format.bias - format.mantissa_bits;  // exponent of the smallest result
      std::vector<float> above;  // half of the smallest result, if slightly
      std::ranges::copy_if(values, std::back_inserter(above), [&](float value) {
        return std::fabs(value) > std::ldexp(1.0f, last - 1 - k);
      });
      ChunkMeasurer chunk(values, 0), chunk_above(above, 0);
      for (const Conversion& conversion : ConversionsTo(format, kNearestEven)) {
        ExpectAsReference(chunk, values, {conversion, std::ldexp(1.0f, k), {}});
        ExpectAsReference(chunk_above, above, {conversion, std::ldexp(1.0f, k), {}});
      }
    }
  }
}

// At scales above 1 the results of formats as wide as float32 can lie below its smallest values;
// chunks with none so small share their rounding with other scales.
TEST_P(MeasureNearestOnTarget, EqualsTheReferenceWhereFloat32HoldsNoSmallResults) {
  std::vector<float> normal = GradientLike(1000, false);
  normal.push_back(0x1p-126f);
  std::vector<float> large = normal;
  for (const float value : {0x1.fffffep127f, 0x1.ffp127f, 0x1.feffp100f, -0x1.8p30f}) {
    large.push_back(value);
  }
  std::vector<float> subnormal = normal;
  for (const float value : {0x1.fffffcp-127f, 0x1p-133f, -0x1.8p-140f, 0x1p-149f}) {
    subnormal.push_back(value);
  }
  for (const std::vector<float>& values : {normal, large, subnormal}) {
    ChunkMeasurer chunk(values, 0);
    for (const char* name : {"bf16", "tf32", "e8m2", "e8m20", "fp16", "fp8-e4m3"}) {
      SCOPED_TRACE(name);
      for (const Conversion& conversion : ConversionsTo(ParseFormat(name).format, kNearestEven)) {
        for (const int k : {-126, -90, -8, -7, -1, 0, 1, 2, 15, 24, 27, 28, 100, 102, 126}) {
          ExpectAsReference(chunk, values, {conversion, std::ldexp(1.0f, k), {}});
        }
      }
    }
  }
}

TEST_P(MeasureNearestOnTarget, EqualsTheReferenceWhereAllValuesAreSmall) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    const uint32_t min_normal = MakeCodecSpec({format.format}).min_normal_bits;
    std::vector<float> small;
    for (const uint32_t bits : BoundaryBits(format.format)) {
      if (small.size() < kChunkElements && (bits & 0x7FFFFFFF) < min_normal) {
        small.push_back(std::bit_cast<float>(bits));
      }
    }
    for (const int k : {0, 1, -3, 15}) {
      std::vector<float> values;
      for (const float value : small) values.push_back(std::ldexp(value, -k));
      ChunkMeasurer chunk(values, 0);
      for (const Conversion& conversion : ConversionsTo(format.format, kNearestEven)) {
        ExpectAsReference(chunk, values, {conversion, std::ldexp(1.0f, k), {}});
      }
    }
  }
}

// The tests above mean little unless every kernel is asked.
TEST(MeasureNearest, ChunksAskEveryKernel) {
  std::set<std::tuple<bool, bool, SmallResults, Overflowing, bool>> kernels;
  const auto add = [&](const NearestKernel& kernel) {
    kernels.insert({kernel.multiplies, kernel.errors_only, kernel.small, kernel.overflowing,
                    kernel.rounds_products});
  };
  for (const uint32_t smallest : {1u, 90u << 23, 113u << 23}) {
    for (const float absmax : {1.0f, 1e6f}) {
      const ChunkInputs inputs = {true, absmax, smallest - 1, 0, 1};
      for (const Conversion& conversion : ConversionsTo(kFp16, kNearestEven)) {
        for (const float scale : {1.0f, 1.5f, 0x1p14f}) {
          for (const Asked asked : {Asked::kAll, Asked::kErrors}) {
            add(ChunkQuestion({conversion, scale, {}}, asked).NearestFor(inputs).kernel);
          }
        }
      }
    }
  }
  const ChunkInputs small_inputs = {true, 1, 0, 0, 1};
  for (const Conversion& conversion : ConversionsTo(kBf16, kNearestEven)) {
    for (const Asked asked : {Asked::kAll, Asked::kErrors}) {
      add(ChunkQuestion({conversion, 0x1p-60f, {}}, asked).NearestFor(small_inputs).kernel);
    }
  }
  const ChunkInputs only_small = {true, 0x1p-20f, 0, 0, 1};
  add(ChunkQuestion({{kFp16}, 1.0f, {}}, Asked::kErrors).NearestFor(only_small).kernel);
  // Without multiplications 4 and, for errors alone, 3 kinds of small results, each with and
  // without infinities, and 1 with no others; with them 3, each with 3 kinds of overflow; where
  // products are rounded 2, each also for errors alone.
  EXPECT_EQ(kernels.size(), 4 * 2 + 3 * 2 + 1 + 3 * 3 + 2 * 2u);
}

TEST_P(MeasureNearestOnTarget, CountsMagnitudesBelowALimit) {
  const std::vector<float> values = GradientLike(1000, false);
  for (size_t length = 0; length < 70; ++length) {
    const auto part = std::span(values).subspan(length, length);
    if (!MeasureInputs(part).finite) continue;  // a target without these kernels
    for (const float limit : {0.0f, 0x1p-149f, 0x1p-20f, 1.0f, 100.0f}) {
      size_t below = 0;
      for (const float value : part) below += std::fabs(value) < limit;
      EXPECT_EQ(CountBelow(part, std::bit_cast<uint32_t>(limit)), below);
    }
  }
}

}  // namespace
}  // namespace dlsim
