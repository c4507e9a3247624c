// SPDX-License-Identifier: Apache-2.0
// What MeasureStep finds out of a gradient's elements.
#include "dlsim/measure_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/gradient_like.h"
#include "tests/support/same_measurement.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_builder.h"
#include "tests/support/wanted_threads_for.h"

namespace dlsim {
namespace {

class MeasureStepTest : public TraceDirectoryTest {
 protected:
  GradientDetail DetailOf(const std::vector<float>& values) {
    dir_.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
    std::vector<StepQuestion> questions = {{{kBf16}}};
    questions.front().detail.emplace();
    return MeasureStep(Open().Load(0), questions, {}).front().front().rest().detail;
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
  const std::vector<StepAnswer> together = MeasureStep(step, questions, {});
  for (size_t q = 0; q < questions.size(); ++q) {
    ExpectSameBits(together[q], MeasureStep(step, std::span(&questions[q], 1), {}).front());
  }
}

// Threads and memory, which bounds the blocks that are measured at once, change no digit.
TEST_F(MeasureStepTest, DigitsAreTheSameForAnyThreadsAndMemory) {
  for (const std::string micro : {"0", "1"}) {
    dir_.Write("step-0.micro-" + micro + ".safetensors",
               BuildSafetensors({FloatTensor("w.grad", GradientLike(200000, true)),
                                 FloatTensor("b.grad", GradientLike(100, false))}));
  }
  const TraceStep step = Open().Load(0);
  const std::vector<StepQuestion> questions = {{{kFp16, Rounding::kStochastic}, 8.0f},
                                               {{kBf16}, 3.0f, {}, DetailQuestion{.edge = 2.0f}}};
  const std::vector<StepAnswer> expected = MeasureStep(step, questions, {});
  for (const int threads : {1, 2, 3, 8}) {
    const WantedThreadsFor wanted(threads);
    for (const uint64_t memory : {uint64_t{1}, uint64_t{1} << 20, kDefaultMemoryBytes}) {
      const std::vector<StepAnswer> answers =
          MeasureStep(step, questions, {.memory_bytes = memory});
      for (size_t q = 0; q < questions.size(); ++q) ExpectSameBits(answers[q], expected[q]);
    }
  }
}

}  // namespace
}  // namespace dlsim
