// SPDX-License-Identifier: Apache-2.0
#include "src/sums/precision_level.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace dlsim
