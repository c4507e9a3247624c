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
    StepQuestion question = {{kBf16}};
    question.detail.emplace();
    return MeasureStep(Open().Load(0), question, {}).front().rest().detail;
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

TEST_F(MeasureStepTest, DigitsAreTheSameForAnyThreads) {
  for (const std::string micro : {"0", "1"}) {
    dir_.Write("step-0.micro-" + micro + ".safetensors",
               BuildSafetensors({FloatTensor("w.grad", GradientLike(200000, true)),
                                 FloatTensor("b.grad", GradientLike(100, false))}));
  }
  const TraceStep step = Open().Load(0);
  for (const StepQuestion& question :
       {StepQuestion{{kFp16, Rounding::kStochastic}, 8.0f},
        StepQuestion{{kBf16}, 3.0f, {}, DetailQuestion{.edge = 2.0f}}}) {
    const StepAnswer expected = MeasureStep(step, question, {});
    for (const int threads : {1, 2, 3, 8}) {
      const WantedThreadsFor wanted(threads);
      ExpectSameBits(MeasureStep(step, question, {}), expected);
    }
  }
}

}  // namespace
}  // namespace dlsim
