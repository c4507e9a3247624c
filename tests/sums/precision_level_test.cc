// SPDX-License-Identifier: Apache-2.0
#include "dlsim/precision_level.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "dlsim/format.h"

namespace dlsim {
namespace {

constexpr PrecisionOptLevel kLevels[] = {PrecisionOptLevel::k0, PrecisionOptLevel::k1,
                                         PrecisionOptLevel::k2};
constexpr Operation kOperations[] = {Operation::kMatMul, Operation::kAttention, Operation::kSoftmax,
                                     Operation::kReduction};

bool IsFloat32(const AccumulationOptions& o) {
  return o.accumulator == kFloat32Precision && o.combiner == kFloat32Precision;
}

TEST(PrecisionLevel, TheTableHasEachCellOnceWithANote) {
  for (const PrecisionOptLevel level : kLevels) {
    for (const Operation operation : kOperations) {
      int rules = 0;
      for (const LevelRule& rule : kLevelRules) {
        rules += rule.level == level && rule.operation == operation;
      }
      EXPECT_EQ(rules, 1);
      EXPECT_FALSE(RuleOf(level, operation).note.empty());
    }
  }
}

TEST(PrecisionLevel, InputsAlwaysHave16BitsToNearest) {
  LevelParameters parameters;
  parameters.short_format = {kBf16, Rounding::kStochastic};
  for (const PrecisionOptLevel level : kLevels) {
    for (const Operation operation : kOperations) {
      EXPECT_EQ(OptionsOf(level, operation, parameters).inputs, FormatPrecision({kBf16}));
    }
  }
}

TEST(PrecisionLevel, EachLevelNarrowsWhatItsDocumentationNames) {
  const auto of = [](PrecisionOptLevel level, Operation operation) {
    return OptionsOf(level, operation, {});
  };
  for (const Operation operation : kOperations) {
    EXPECT_TRUE(IsFloat32(of(PrecisionOptLevel::k0, operation)));
    for (const PrecisionOptLevel level : kLevels) {
      EXPECT_EQ(of(level, operation).chunk_length, LevelParameters().chunk_length);
    }
  }
  EXPECT_TRUE(IsFloat32(of(PrecisionOptLevel::k1, Operation::kAttention)));
  EXPECT_TRUE(IsFloat32(of(PrecisionOptLevel::k1, Operation::kSoftmax)));
  for (const auto& mixed : {of(PrecisionOptLevel::k1, Operation::kMatMul),
                            of(PrecisionOptLevel::k2, Operation::kMatMul),
                            of(PrecisionOptLevel::k2, Operation::kAttention)}) {
    EXPECT_EQ(mixed.accumulator, FormatPrecision({kCb16}));
    EXPECT_EQ(mixed.combiner, kFloat32Precision);
  }
  const AccumulationOptions softmax = of(PrecisionOptLevel::k2, Operation::kSoftmax);
  EXPECT_EQ(softmax.accumulator, FormatPrecision({kCb16}));
  EXPECT_EQ(softmax.terms, FormatPrecision({kCb16}));
}

// Two rows; the second is the first, shifted, which softmax cannot see.
TEST(Softmax, InFloat32IsNearTheExactOne) {
  const std::vector<float> x = {0.5f, -1.25f, 3.0f, 2.0f, 100.5f, 98.75f, 103.0f, 102.0f};
  const Accumulated y = Softmax(x, 4, AccumulationOptions());
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) sum += std::exp(static_cast<double>(x[i]));
  for (size_t i = 0; i < 8; ++i) {
    const double exact = std::exp(static_cast<double>(x[i % 4])) / sum;
    EXPECT_NEAR(y.values[i], exact, 2e-7 * exact) << i;
  }
  EXPECT_EQ(y.counts.additions, 8u);
}

// 4096 equal values: each is 1/4096, but a cb16 sum of ones stops at 1024 (10-bit significand).
TEST(Softmax, In16BitsSwampsALongRow) {
  const std::vector<float> x(4096, 0.25f);
  const auto at = [&](PrecisionOptLevel level) {
    LevelParameters parameters;
    parameters.chunk_length = kOneChunk;
    return Softmax(x, x.size(), OptionsOf(level, Operation::kSoftmax, parameters));
  };
  EXPECT_EQ(at(PrecisionOptLevel::k1).values, std::vector<float>(4096, 0x1p-12f));
  const Accumulated narrow = at(PrecisionOptLevel::k2);
  EXPECT_EQ(narrow.values, std::vector<float>(4096, 0x1p-10f));
  EXPECT_EQ(narrow.counts.swamped, 4096u - 1024u);
}

TEST(Softmax, RoundsEachStepOnce) {
  AccumulationOptions options;
  options.terms = FormatPrecision({kFp16});
  const std::vector<float> x = {1.0f, 0.9f};
  const Accumulated y = Softmax(x, 2, options);
  // fp16: 0.9 - 1 = -0.1 -> -0.0999756; its exponential 0.904860 -> 0.904785; 1 / 1.904785 ->
  // 0.524902, 0.904785 / 1.904785 -> 0.475098.
  EXPECT_EQ(y.values, (std::vector<float>{0.52490234375f, 0.47509765625f}));
}

TEST(Softmax, MasksAndNonfiniteRows) {
  const float inf = HUGE_VALF;
  const Accumulated y =
      Softmax(std::vector<float>{0, -inf, 0, inf, 0, -inf}, 3, AccumulationOptions());
  EXPECT_EQ(y.values[0], 0.5f);
  EXPECT_EQ(y.values[1], 0.0f);
  EXPECT_TRUE(std::isnan(y.values[3]));
}

}  // namespace
}  // namespace dlsim
