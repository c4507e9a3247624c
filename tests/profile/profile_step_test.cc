// SPDX-License-Identifier: Apache-2.0
// A profile of a step answers as measuring the step does.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/profile.h"
#include "src/base/side_task.h"
#include "src/histogram/histogram_question.h"
#include "tests/support/same_stats.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace dlsim {
namespace {

constexpr Accumulation kAccumulations[] = {Accumulation::kQuantizeThenSum,
                                           Accumulation::kSumThenQuantize};

StepOptions Accumulating(Accumulation accumulation) {
  StepOptions options;
  options.accumulation = accumulation;
  return options;
}

const HistogramEdges& Edges() {
  static const HistogramEdges edges = EdgesOf(DefaultLadder());
  return edges;
}

std::vector<StepQuestion> Questions() {
  std::vector<StepQuestion> questions;
  for (const NamedFormat& format : DefaultLadder().formats) {
    for (const float scale : {1.0f, 0x1p15f, 2e15f, std::ldexp(2e-14f, 40)}) {
      questions.push_back({{format.format}, scale});
      questions.push_back({{format.format, Rounding::kTowardNegative, Overflow::kSaturate}, scale});
      questions.push_back(
          {{format.format, Rounding::kNearestAway, {}, Subnormals::kFlushToZero}, scale});
    }
  }
  return questions;
}

void ExpectAnswersAsMeasured(const TraceStep& step, const StepOptions& options) {
  const std::vector<StepQuestion> questions = Questions();
  const StepMeasurement measurement = MeasureStep(step, questions, options);
  const ProfileStep profile = ProfileOf(step, Edges(), options);
  ASSERT_EQ(profile.micro_steps, measurement.micro_steps);
  ASSERT_EQ(profile.tensors.size(), measurement.tensors.size());
  for (size_t t = 0; t < profile.tensors.size(); ++t) {
    EXPECT_EQ(profile.tensors[t].name, measurement.tensors[t].name);
    EXPECT_EQ(profile.tensors[t].role, measurement.tensors[t].role);
    for (size_t part = 0; part < profile.micro_steps.size(); ++part) {
      const HistogramIndex index(profile.histograms[part][t], Edges());
      for (size_t q = 0; q < questions.size(); ++q) {
        SCOPED_TRACE(profile.tensors[t].name + ", question " + std::to_string(q));
        const HistogramQuestion question(questions[q].conversion, questions[q].scale);
        const HistogramAnswer answer = question.Ask(index);
        EXPECT_TRUE(answer.exact());
        ExpectSameInHistogram(answer.stats, measurement.answers[q][t].parts[part]);
      }
    }
  }
}

class ProfileStepOfTrace : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Traces, ProfileStepOfTrace,
                         testing::Values("lm-kjv-accum-cut", "lm-trouble-cut", "reg-diabetes-cut",
                                         "cnn-digits"));

TEST_P(ProfileStepOfTrace, AnswersAsMeasuringTheStepDoes) {
  const TraceReader reader = OpenTrace({kTraces + GetParam()});
  for (size_t i = 0; i < reader.step_count(); i += 4) {
    const TraceStep step = reader.Load(i);
    for (const Accumulation accumulation : kAccumulations) {
      ExpectAnswersAsMeasured(step, Accumulating(accumulation));
    }
  }
}

// Values of many binades, zeros included.
std::vector<float> Values(size_t count, uint32_t first) {
  std::vector<float> values(count);
  uint32_t state = first;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -40 - int(state % 61));
  }
  return values;
}

class ProfileStepTest : public TraceDirectoryTest {
 protected:
  // A step of two micro-steps, whose tensors are cut into blocks, and too short an activation.
  TraceStep TwoMicroSteps() {
    for (uint32_t micro = 0; micro < 2; ++micro) {
      std::vector<float> special = {std::numeric_limits<float>::infinity(), 1e-42f, -0.0f};
      std::vector<BuiltTensor> tensors = {
          FloatTensor("large.grad", Values(700001, micro)), FloatTensor("special.grad", special),
          FloatTensor("x.act_grad", Values(micro == 0 ? 70000 : 200, 7 + micro))};
      if (micro == 1) tensors.push_back(FloatTensor("y.act_grad", Values(5, 3)));
      dir_.Write("step-0.micro-" + std::to_string(micro) + ".safetensors",
                 BuildSafetensors(tensors, {{"grad_scale", "8"}, {"lr", std::to_string(micro)}}));
    }
    return Open().Load(0);
  }
};

TEST_F(ProfileStepTest, AnswersAsMeasuringDoesForLargeTensorsAndMissingOnes) {
  for (const Accumulation accumulation : kAccumulations) {
    ExpectAnswersAsMeasured(TwoMicroSteps(), Accumulating(accumulation));
  }
}

TEST_F(ProfileStepTest, IsTheSameForAnyNumberOfThreadsAndWayOfReading) {
  for (const Accumulation accumulation : kAccumulations) {
    const StepOptions options = Accumulating(accumulation);
    const ProfileStep expected = ProfileOf(TwoMicroSteps(), Edges(), options);
    const InMemory memory(TwoMicroSteps());
    EXPECT_EQ(ProfileOf(memory.step(), Edges(), options), expected);
#ifdef _OPENMP
    const int threads = omp_get_max_threads();
    for (const int count : {1, 3, 8}) {
      omp_set_num_threads(count);
      EXPECT_EQ(ProfileOf(TwoMicroSteps(), Edges(), options), expected);
    }
    omp_set_num_threads(threads);
#endif
  }
}

TEST_F(ProfileStepTest, SaysWhereItComesFrom) {
  const ProfileStep profile = ProfileOf(TwoMicroSteps(), Edges(), {});
  EXPECT_EQ(profile.step, 0);
  EXPECT_EQ(profile.micro_steps, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(profile.metadata.at("lr"), "0");
  ASSERT_EQ(profile.files.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = "step-0.micro-" + std::to_string(i) + ".safetensors";
    EXPECT_EQ(profile.files[i], (ProfileFile{name, std::filesystem::file_size(Path(name))}));
  }
  ASSERT_EQ(profile.tensors.size(), 4u);
  EXPECT_EQ(profile.tensors[0], (ProfileTensor{"large.grad", Role::kGrad, DType::kF32, {700001}}));
  EXPECT_EQ(profile.tensors[3], (ProfileTensor{"y.act_grad", Role::kActGrad, DType::kF32, {5}}));
  EXPECT_EQ(profile.histograms[0][3], Histogram());
}

// What else is asked of the step does not matter.
TEST_F(ProfileStepTest, HasTheChannelsOfGradientsAlone) {
  dir_.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", Values(30, 1)),
                                                     FloatTensor("x.act", Values(50, 2)),
                                                     FloatTensor("y.act", Values(60, 3))}));
  const TraceStep step = Open().Load(0);
  StepOptions options;
  const ProfileStep profile = ProfileOf(step, Edges(), options);
  ASSERT_EQ(profile.channels.size(), 3u);
  EXPECT_TRUE(profile.channels[0].known());
  EXPECT_FALSE(profile.channels[1].known());
  options.channels = true;
  EXPECT_EQ(ProfileOf(step, Edges(), options), profile);
}

TEST_F(ProfileStepTest, DoesTheSideTaskOnce) {
  int done = 0;
  const auto task = [&] { ++done; };
  RunWithSideTask(task, [&] { ProfileOf(TwoMicroSteps(), Edges(), {}); });
  EXPECT_EQ(done, 1);
  RunWithSideTask(task, [&] { ProfileOf(TraceStep{}, Edges(), {}); });
  EXPECT_EQ(done, 2);
}

TEST_F(ProfileStepTest, HasTotalsByRole) {
  const ProfileStep profile = ProfileOf(TwoMicroSteps(), Edges(), {});
  const ProfileTotals totals = TotalsOf(profile);
  ASSERT_EQ(totals.gradients.size(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    const std::vector<Histogram>& of_part = profile.histograms[part];
    EXPECT_EQ(totals.gradients[part], MergeHistograms(of_part[0], of_part[1]));
    EXPECT_EQ(totals.activations[part], MergeHistograms(of_part[2], of_part[3]));
  }
}

// Asking for details must not change what is measured.
TEST_F(ProfileStepTest, MeasuresSumsFirstAlikeWithDetails) {
  const StepQuestion plain = {{kFp16}, 4.0f};
  StepQuestion detailed = plain;
  detailed.detail = DetailQuestion{};
  const StepMeasurement measured =
      MeasureStep(TwoMicroSteps(), std::vector<StepQuestion>{plain, detailed},
                  Accumulating(Accumulation::kSumThenQuantize));
  for (size_t t = 0; t < measured.tensors.size(); ++t) {
    ExpectSame(measured.answers[1][t].parts[0], measured.answers[0][t].parts[0]);
  }
}

}  // namespace
}  // namespace dlsim
