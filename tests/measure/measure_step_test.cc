// SPDX-License-Identifier: Apache-2.0
// What MeasureStep finds out of a gradient's elements.
#include "dlsim/measure_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

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

}  // namespace
}  // namespace dlsim
