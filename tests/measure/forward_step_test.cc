// SPDX-License-Identifier: Apache-2.0
// Forward tensors are known by their names, and measured as they are, apart from gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/step_tables.h"
#include "dlsim/trace.h"
#include "src/trace/tensor_rules.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

TEST(Roles, AreRecognizedByTheEndOfAName) {
  for (const auto& [name, role] :
       std::vector<std::pair<std::string, Role>>{{"fc.weight.grad", Role::kGrad},
                                                 {"fc.weight", Role::kGrad},
                                                 {"act", Role::kGrad},
                                                 {"react", Role::kGrad},
                                                 {"fc.act.grad", Role::kGrad},
                                                 {"fc.act_grad", Role::kActGrad},
                                                 {"fc.call1.act_grad", Role::kActGrad},
                                                 {"attention/softmax.act_grad", Role::kActGrad},
                                                 {"fc.act", Role::kAct},
                                                 {"fc.call1.act", Role::kAct},
                                                 {"attention/matmul.call2.act", Role::kAct},
                                                 {"fc.fwd", Role::kAct},
                                                 {"fc.weight.value", Role::kValue}}) {
    EXPECT_EQ(RoleOfName(name), role) << name;
    EXPECT_EQ(IsForward(role), !IsGradient(role)) << name;
  }
  EXPECT_TRUE(IsForward(Role::kAct) && IsForward(Role::kValue));
  EXPECT_TRUE(IsGradient(Role::kGrad) && IsGradient(Role::kActGrad));
}

class ForwardStep : public TraceDirectoryTest {
 protected:
  // Two micro-steps that carry a loss scale, with values that overflow and one that is infinite.
  TraceStep Load() {
    for (int micro = 0; micro < 2; ++micro) {
      const float sign = micro == 0 ? 1 : -1;
      std::vector<BuiltTensor> tensors = {
          FloatTensor("fc.act", {70000 * sign, kInf, 1e-9f}),
          FloatTensor("w.grad", {1024, 2048}),
          FloatTensor("w.value", {3, -5}),
          FloatTensor("fc.act_grad", {512, 256}),
      };
      if (micro == 1) tensors.push_back(FloatTensor("late.act", {1, 2, 3, 4}));
      dir_.Write("step-0.micro-0" + std::to_string(micro) + ".safetensors",
                 BuildSafetensors(tensors, {{"grad_scale", "1024"}}));
    }
    return Open().Load(0);
  }
};

std::vector<std::string> NamesOf(const std::vector<TensorRef>& tensors) {
  std::vector<std::string> names;
  for (const TensorRef& tensor : tensors) names.push_back(tensor->name);
  return names;
}

TEST_F(ForwardStep, GradientsAreMeasuredWithoutIt) {
  const TraceStep step = Load();
  const std::vector<std::string> names = {"w.grad", "fc.act_grad", "fc.act", "w.value", "late.act"};
  EXPECT_EQ(NamesOf(DescribeTensors(step)), names);
  const StepAnswer measured = MeasureStep(step, {{kFp16}, 64.0f}, {});
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[0].Part(0).absmax, 2);
  EXPECT_EQ(SumGradients(step), (std::vector<double>{2 * (1 + 2), 2 * (0.5 + 0.25)}));
}

// At scale one, whatever scale the gradients carry.
TEST_F(ForwardStep, IsTabulatedEachMicroStepByItself) {
  const StepTables tables = TabulateStep(Load(), {});
  EXPECT_EQ(tables.micro_steps, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(tables.gradients, 2u);
  ASSERT_EQ(tables.tensors.size(), 5u);
  ASSERT_EQ(tables.parts.size(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    const float sign = part == 0 ? 1 : -1;
    EXPECT_EQ(tables.parts[part][2], Tabulate(std::vector{70000 * sign, kInf, 1e-9f}));
    EXPECT_EQ(tables.parts[part][3], Tabulate(std::vector{3.0f, -5.0f}));
  }
  EXPECT_EQ(tables.parts[0][4].elements, 0u);
  EXPECT_EQ(tables.parts[1][4], Tabulate(std::vector{1.0f, 2.0f, 3.0f, 4.0f}));
  EXPECT_EQ(tables.sums.size(), 2u) << "forward tensors have no sum";
}

TEST_F(ForwardStep, HasOnePartWhereTheMicroStepsAreSummedFirst) {
  const StepTables tables = TabulateStep(Load(), {.accumulation = Accumulation::kSumThenQuantize});
  ASSERT_EQ(tables.parts.size(), 1u);
  EXPECT_EQ(tables.parts[0][0], Tabulate(std::vector{2.0f, 4.0f}));
  EXPECT_EQ(tables.parts[0][2],
            Tabulate(std::vector<float>{70000, kInf, 1e-9f, -70000, kInf, 1e-9f}));
  EXPECT_EQ(tables.parts[0][4], Tabulate(std::vector{1.0f, 2.0f, 3.0f, 4.0f}));
}

TEST_F(ForwardStep, ValuesAreAsRecorded) {
  const TraceStep step = Load();
  const Recording& recording = step.recordings.front();
  VisitValues(recording, recording.tensors[0],
              [](uint64_t, std::span<const float> values) { EXPECT_EQ(values[0], 70000); });
  VisitValues(recording, recording.tensors[1],
              [](uint64_t, std::span<const float> values) { EXPECT_EQ(values[0], 1); });
}

}  // namespace
}  // namespace dlsim
