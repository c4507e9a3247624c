// SPDX-License-Identifier: Apache-2.0
// Forward tensors are known by their names, and measured as they are, apart from gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/measure_step.h"
#include "dlsim/profile.h"
#include "dlsim/tensor_values.h"
#include "src/histogram/histogram_question.h"
#include "src/trace/tensor_rules.h"
#include "tests/support/same_measurement.h"
#include "tests/support/same_stats.h"
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

  static StepOptions Accumulating(Accumulation accumulation) {
    StepOptions options;
    options.accumulation = accumulation;
    return options;
  }
};

std::vector<std::string> NamesOf(const std::vector<StepTensor>& tensors) {
  std::vector<std::string> names;
  for (const StepTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST_F(ForwardStep, GradientsAreMeasuredWithoutIt) {
  const TraceStep step = Load();
  const std::vector<StepQuestion> questions = {{{kFp16}, 64.0f}};
  const std::vector<std::string> gradients = {"w.grad", "fc.act_grad"};
  EXPECT_EQ(NamesOf(TensorsOf(step)), gradients);
  const StepMeasurement measured = MeasureStep(step, questions, {});
  EXPECT_EQ(NamesOf(measured.tensors), gradients);
  EXPECT_EQ(measured.answers[0].size(), 2u);
  EXPECT_EQ(measured.answers[0][0].parts[0].absmax, 2);
  EXPECT_EQ(MeasureSpreads(step).size(), 2u);
}

TEST_F(ForwardStep, IsMeasuredAtScaleOneEachMicroStepByItself) {
  const TraceStep step = Load();
  const std::vector<Conversion> conversions = {{kFp16}, {kBf16}};
  for (const Accumulation accumulation :
       {Accumulation::kQuantizeThenSum, Accumulation::kSumThenQuantize}) {
    const StepMeasurement measured = MeasureForward(step, conversions, Accumulating(accumulation));
    EXPECT_EQ(measured.micro_steps, (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(NamesOf(measured.tensors),
              (std::vector<std::string>{"fc.act", "w.value", "late.act"}));
    for (const TensorStats& part : measured.answers[0][0].parts) {
      EXPECT_EQ(part.absmax, 70000);
      EXPECT_EQ(part.elements, 3u);
      EXPECT_EQ(part.inf, 1u);
      EXPECT_EQ(part.overflow, 1u);
      EXPECT_EQ(part.underflow, 1u);
    }
    for (const TensorStats& part : measured.answers[1][0].parts) {
      EXPECT_EQ(part.overflow + part.underflow, 0u);
    }
    EXPECT_EQ(measured.answers[0][1].parts[1].absmax, 5);
    EXPECT_EQ(measured.answers[0][2].parts[0].elements, 0u);
    EXPECT_EQ(measured.answers[0][2].parts[1].elements, 4u);
  }
}

TEST_F(ForwardStep, AProfileAnswersAlike) {
  const TraceStep step = Load();
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  const std::vector<Conversion> conversions = {{kFp16}};
  const StepMeasurement measured = MeasureForward(step, conversions, {});
  for (const Accumulation accumulation :
       {Accumulation::kQuantizeThenSum, Accumulation::kSumThenQuantize}) {
    const ProfileStep profile = ProfileOf(step, edges, Accumulating(accumulation));
    ASSERT_EQ(profile.tensors.size(), 5u);
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(profile.tensors[2 + t].name, measured.tensors[t].name);
      EXPECT_EQ(profile.tensors[2 + t].role, measured.tensors[t].role);
      std::vector<TensorStats> expected = measured.answers[0][t].parts;
      if (accumulation == Accumulation::kSumThenQuantize) {
        expected[0].Merge(expected[1]);
        expected.resize(1);
      }
      ASSERT_EQ(profile.histograms.size(), expected.size());
      for (size_t part = 0; part < expected.size(); ++part) {
        const HistogramIndex index(profile.histograms[part][2 + t], edges);
        ExpectSameInHistogram(HistogramQuestion({kFp16}, 1).Ask(index).stats, expected[part]);
      }
    }
    const ProfileTotals totals = TotalsOf(profile);
    EXPECT_EQ(totals.gradients[0].elements, 2u);
    EXPECT_EQ(totals.activations[0].elements, 2u);
  }
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
