// SPDX-License-Identifier: Apache-2.0
// The gradient of the loss itself counts nowhere, in a trace as in its profile.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/replay/step_sources.h"
#include "tests/support/small_replay.h"

namespace dlsim::sim {
namespace {

struct LossCase {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;  // by step
  bool is_loss;
};

class LossTensors : public SmallReplayTest {
 protected:
  void Write(const LossCase& of) {
    for (size_t i = 0; i < of.values.size(); ++i) {
      WriteStep(static_cast<int>(i), {{of.name, "F32", of.shape, FloatBytes({of.values[i]})},
                                      FloatTensor("a.weight.grad", {0.001f, 0.002f}),
                                      FloatTensor("a.act_grad", {0.01f, 0.02f})});
    }
  }
};

TEST_F(LossTensors, AreTheSameShareOfOneAtAllSteps) {
  const std::vector<LossCase> cases = {
      {"(root).act_grad", {}, {1, 1, 1}, true},
      {"(root).out1.act_grad", {}, {1, 1, 1}, true},
      {"(root).act_grad", {1}, {1, 1, 1}, true},
      {"criterion.act_grad", {}, {1, 1, 1}, true},
      {"(root).act_grad", {}, {0.25f, 0.25f, 0.25f}, true},
      {"(root).act_grad", {}, {1.0f / 3, 1.0f / 3, 1.0f / 3}, true},
      {"(root).act_grad", {}, {1, 1, 0.5f}, false},
      {"(root).act_grad", {}, {1, -1, 1}, false},
      {"(root).act_grad", {}, {2, 2, 2}, false},
      {"(root).act_grad", {}, {0.7f, 0.7f, 0.7f}, false},
      {"(root).act_grad", {1, 1}, {1, 1, 1}, false},
      {"head.act_grad", {1}, {1, 1, 1}, false},
      {"bias.grad", {}, {1, 1, 1}, false},
  };
  for (const LossCase& of : cases) {
    SCOPED_TRACE(of.name + " " + std::to_string(of.values.back()));
    Write(of);
    const TraceReader trace = Open();
    const StepSource source = WithoutLosses(TraceSteps(trace, 1));
    EXPECT_EQ(source.describe(0)->gradients().size(), of.is_loss ? 2u : 3u);
    EXPECT_EQ(source.facts.notes.size(), of.is_loss ? 1u : 0u);
    const std::vector<std::string> formats = {"fp16"};
    const Advice advice = AdviseOn(source, {.formats = formats});
    EXPECT_EQ(advice.formats[0].high.tensor, of.is_loss ? "a.act_grad" : of.name);
  }
}

TEST_F(LossTensors, AreKeptWhereNothingElseWasRecorded) {
  WriteStep(0, {{"(root).act_grad", "F32", {}, FloatBytes({1})}});
  const TraceReader trace = Open();
  EXPECT_EQ(WithoutLosses(TraceSteps(trace, 1)).describe(0)->gradients().size(), 1u);
}

TEST_F(LossTensors, ABrokenLossIsInTheVerdict) {
  const auto lines = [&](const std::string& loss) {
    for (int step : {0, 1}) {
      dir_.Write("step-" + std::to_string(step) + ".safetensors",
                 BuildSafetensors({FloatTensor("a.weight.grad", {0.001f, 0.002f})},
                                  {{"loss", step == 1 ? loss : "0.5"}}));
    }
    const TraceReader trace = Open();
    const std::vector<std::string> formats = {"fp16"};
    return AdviceLines(AdviseOn(TraceSteps(trace, 1), {.formats = formats}))[1];
  };
  for (const char* loss : {"nan", "NaN", "-nan", "inf", "-inf", "Infinity"}) {
    EXPECT_NE(lines(loss).find("loss is NaN or infinite at 1 step (step 1)"), std::string::npos)
        << loss << ": " << lines(loss);
  }
  for (const char* loss : {"1e30", "0", "", "nano", "unknown"}) {
    EXPECT_EQ(lines(loss).find("loss is NaN"), std::string::npos) << loss;
  }
}

// Of all steps, and what the first message says before what it expected.
TEST_F(LossTensors, RefusedStepsAndTypesOf16BitsAreInTheVerdict) {
  using Metadata = std::map<std::string, std::string>;
  const Metadata metadata[] = {
      {{"refused", "2"}, {"refused_first", "step 0: a: clipped, expected not"}},
      {{"refused", "3"}, {"refused_first", "step 3: b"}, {"computed_in", "float16"}},
      {{"refused", "some"}, {"computed_in", "bfloat16"}}};
  for (int step = 0; step < 3; ++step) {
    dir_.Write("step-" + std::to_string(step) + ".safetensors",
               BuildSafetensors({FloatTensor("a.weight.grad", {0.001f, 0.002f})}, metadata[step]));
  }
  const TraceReader trace = Open();
  const std::vector<std::string> formats = {"fp16"};
  const Advice advice = AdviseOn(TraceSteps(trace, 1), {.formats = formats});
  EXPECT_EQ(advice.refused.steps, 5u);
  for (const std::string text :
       {" 5 of 8 steps were refused: step 0: a: clipped.",
        "computed in float16 at 1 step: what became zero or infinite there is not seen",
        "computed in bfloat16 at 1 step: what was rounded away there is not seen"}) {
    EXPECT_NE(AdviceLines(advice)[1].find(text), std::string::npos) << AdviceLines(advice)[1];
  }
}

TEST_F(LossTensors, NamesOfNoRoleThatGradientsDoNotHaveAreNoted) {
  for (const auto& [name, noted] :
       std::vector<std::pair<std::string, bool>>{{"fc.act", false},
                                                 {"fc.weight.value", false},
                                                 {"fc.fwd", false},
                                                 {"fc.output", true},
                                                 {"fc.activation", true},
                                                 {"fc.weight", true},
                                                 {"fc.bias", true},
                                                 {"fc.weight.grad", false},
                                                 {"fc.act_grad", false},
                                                 {"w", false}}) {
    WriteStep(0, {FloatTensor(name, {0.1f, 0.2f})});
    EXPECT_EQ(TraceSteps(Open(), 1).facts.notes.size(), noted ? 1u : 0u) << name;
  }
}

}  // namespace
}  // namespace dlsim::sim
