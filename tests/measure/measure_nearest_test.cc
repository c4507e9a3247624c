// SPDX-License-Identifier: Apache-2.0
// Chunks of finite values rounded to nearest even: every kernel, and what questions share, equal
// the scalar reference, digit for digit, on every target.
#include <gtest/gtest.h>

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

// The test above means little unless every kernel is asked.
TEST(MeasureNearest, ChunksAskEveryKernel) {
  std::set<std::tuple<bool, bool, SmallResults, Overflowing>> kernels;
  for (const uint32_t smallest : {1u, 90u << 23, 113u << 23}) {
    for (const float absmax : {1.0f, 1e6f}) {
      const ChunkInputs inputs = {true, absmax, smallest - 1, 0, 1};
      for (const Conversion& conversion : ConversionsTo(kFp16, kNearestEven)) {
        for (const float scale : {1.0f, 1.5f, 0x1p14f}) {
          for (const Asked asked : {Asked::kAll, Asked::kErrors}) {
            const auto nearest = ChunkQuestion({conversion, scale, {}}, asked).NearestFor(inputs);
            kernels.insert({nearest.kernel.multiplies, nearest.kernel.errors_only,
                            nearest.kernel.small, nearest.kernel.overflowing});
          }
        }
      }
    }
  }
  // Without multiplications 4 and, for errors alone, 3 kinds of small results, each with and
  // without infinities; with them 3, each with 3 kinds of overflow.
  EXPECT_EQ(kernels.size(), 4 * 2 + 3 * 2 + 3 * 3u);
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
