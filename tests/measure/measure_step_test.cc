// SPDX-License-Identifier: Apache-2.0
// What MeasureStep finds out of a gradient's elements.
#include "dlsim/measure_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/gradient_like.h"
#include "tests/support/same_measurement.h"
#include "tests/support/same_stats.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

class MeasureStepTest : public TraceDirectoryTest {
 protected:
  GradientDetail DetailOf(const std::vector<float>& values) {
    dir_.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
    std::vector<StepQuestion> questions = {{{kBf16}}};
    questions.front().detail.emplace();
    return MeasureStep(Open().Load(0), questions, {}).answers.front().front().detail;
  }
};

TEST_F(MeasureStepTest, AnyElementThatIsNotFiniteMakesAbsmaxInfinite) {
  EXPECT_EQ(DetailOf({1, -4, 2}).absmax, 4);
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    for (size_t i = 0; i < 3; ++i) {
      std::vector<float> values = {1, -4, 2};
      values[i] = bad;
      EXPECT_EQ(DetailOf(values).absmax, kInf) << bad << " at " << i;
    }
  }
}

// Questions that come to the same conversion and scale of a tensor are measured once.
TEST_F(MeasureStepTest, QuestionsTogetherAreAnsweredAsEachAlone) {
  const std::vector<BuiltTensor> tensors = {FloatTensor("w.grad", GradientLike(70000, false)),
                                            FloatTensor("b.grad", GradientLike(100, true))};
  dir_.Write("step-0.safetensors", BuildSafetensors(tensors));
  const TraceStep step = Open().Load(0);
  std::vector<StepQuestion> questions = {
      {{kFp16}, 8.0f},
      {{kFp16}, 1.0f, {8.0f, 4.0f}},
      {{kFp16}, 8.0f, {}, DetailQuestion{.edge = 2.0f, .sums = false}},
      {{kFp16}, 4.0f, {}, DetailQuestion{.limit = 0.5f}},
      {{kFp16}, 4.0f},
      {{kFp16, Rounding::kStochastic}, 4.0f},
      {{kFp16, Rounding::kStochastic}, 1.0f, {4.0f, 4.0f}}};
  const StepMeasurement together = MeasureStep(step, questions, {});
  for (size_t q = 0; q < questions.size(); ++q) {
    const StepMeasurement alone = MeasureStep(step, std::span(&questions[q], 1), {});
    for (size_t t = 0; t < tensors.size(); ++t) {
      ExpectSameBits(together.answers[q][t], alone.answers[0][t]);
    }
  }
}

TEST_F(MeasureStepTest, ErrorsAloneAreThoseOfTheWholeAnswer) {
  for (const std::string file : {"step-0.micro-00.safetensors", "step-0.micro-01.safetensors"}) {
    dir_.Write(file, BuildSafetensors({FloatTensor("w.grad", GradientLike(5000, false))}));
  }
  const StepQuestion all = {{kFp16}, 0x1p-12f};
  StepQuestion errors = all;
  errors.asked = Asked::kErrors;
  const StepMeasurement measured =
      MeasureStep(Open().Load(0), std::vector<StepQuestion>{all, errors}, {});
  ASSERT_EQ(measured.answers[1][0].parts.size(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    ExpectSameErrors(measured.answers[1][0].parts[part], measured.answers[0][0].parts[part]);
  }
}

}  // namespace
}  // namespace dlsim
