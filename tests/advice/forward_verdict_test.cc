// SPDX-License-Identifier: Apache-2.0
// What a verdict says of traces with forward tensors, and of the same without them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/tune.h"
#include "sim/advice/advice.h"
#include "sim/advice/windows.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"
#include "tests/support/tables_of.h"

namespace dlsim::sim {
namespace {

using Json = nlohmann::ordered_json;

Json ParsedAdvice(const Advice& advice) { return Json::parse(JsonText(RowsOf(advice))); }

class ForwardVerdictTest : public SmallReplayTest {
 protected:
  // A block for whose gradients any usual scale is safe, with the forward tensors at some steps.
  void WriteBlock(int step, std::vector<BuiltTensor> forward,
                  const nlohmann::ordered_json& metadata = {}) {
    forward.push_back(FloatTensor("block.0.wo.weight.grad", {1.0f, -0.25f}));
    forward.push_back(FloatTensor("block.0.wo.act_grad", {0.01f, 0.002f}));
    dir_.Write("step-" + std::to_string(step) + ".safetensors",
               BuildSafetensors(forward, metadata));
  }
  // Of the T5 whose feed-forward output is too large for fp16 in its first step.
  void WriteT5() {
    WriteBlock(0, {FloatTensor("block.0.wi.act", {812.5f, -3}),
                   FloatTensor("block.0.wo.act", {66246, 1, -65504})});
    WriteBlock(
        1, {FloatTensor("block.0.wi.act", {900, 2}), FloatTensor("block.0.wo.act", {70000, 1, 0})});
    for (int step = 2; step < 5; ++step) WriteBlock(step, {});
  }
  Advice AdviseOnTrace(const AdviceRequest& request = {}) {
    const TraceReader trace = Open();
    return AdviseOn(WithoutLosses(TraceSteps(trace)), request);
  }
};

std::string TextOf(const Advice& advice) {
  std::string text;
  for (const std::string& line : AdviceLines(advice)) text += line + "\n";
  return text;
}

TEST_F(ForwardVerdictTest, T5FailsInForwardInFp16) {
  WriteT5();
  const Advice advice = AdviseOnTrace();
  EXPECT_EQ(TextOf(advice),
            "fp16  fails in forward: block.0.wo reaches 66246 at step 0, the largest fp16 value is "
            "65504. No loss scale helps.\n  Instead, use bf16.\n"
            "bf16  trains without loss scaling.\n"
            "cb16  trains. Safe loss scales: 2^-30 to 2^31 (all 5 steps).\n"
            "Based on gradients of parameters and activations and on the forward pass of 2 of 5 "
            "steps.\n");
  EXPECT_EQ(advice.formats[0].verdict, Verdict::kFailsInForward);
  EXPECT_EQ(advice.best, 2u);
  EXPECT_EQ(advice.looked_at, (std::vector{Role::kGrad, Role::kActGrad, Role::kAct}));
}

TEST_F(ForwardVerdictTest, T5InJson) {
  WriteT5();
  const Json verdict = ParsedAdvice(AdviseOnTrace());
  const Json& fp16 = verdict["formats"][0];
  EXPECT_EQ(fp16["verdict"], "fails in forward");
  const Json& forward = fp16["forward"];
  EXPECT_EQ(forward["state"], "overflows");
  EXPECT_EQ(forward["steps"], 2);
  EXPECT_EQ(forward["absmax"], 70000);
  EXPECT_NEAR(forward["headroom"].get<double>(), -0.0958, 1e-4);
  EXPECT_EQ(forward["first"], (Json{{"step", 0}, {"tensor", "block.0.wo.act"}, {"absmax", 66246}}));
  EXPECT_EQ(
      forward["overflowing"],
      Json::array({Json{{"tensor", "block.0.wo.act"}, {"first_step", 0}, {"absmax", 70000}}}));
  EXPECT_EQ(verdict["formats"][1]["forward"]["state"], "fits");
  EXPECT_EQ(verdict["formats"][1]["forward"]["first"], nullptr);
  EXPECT_EQ(fp16["values"]["state"], "not recorded");
  EXPECT_EQ(fp16["values"]["steps"], 0);
  EXPECT_EQ(fp16["values"]["absmax"], nullptr);
  EXPECT_EQ(fp16["values"]["headroom"], nullptr);
  EXPECT_EQ(verdict["looked_at"], (Json{"grad", "act_grad", "act"}));
  EXPECT_EQ(verdict["recipe"], "autocast");
}

// What the forward pass holds moves no window.
TEST_F(ForwardVerdictTest, WindowsAreThoseOfTheGradientsAlone) {
  WriteT5();
  const Json with = ParsedAdvice(AdviseOnTrace());
  for (int step = 0; step < 5; ++step) WriteBlock(step, {});
  const Json without = ParsedAdvice(AdviseOnTrace());
  for (size_t f = 0; f < 3; ++f) {
    for (const char* key : {"window", "window_low", "window_high", "scale", "steps", "mean_harm",
                            "tensors_at_risk", "steps_outside_window"}) {
      EXPECT_EQ(with["formats"][f][key], without["formats"][f][key]) << key;
    }
    EXPECT_EQ(without["formats"][f]["forward"]["state"], "not recorded");
  }
}

TEST_F(ForwardVerdictTest, AProfileSaysTheSame) {
  WriteT5();
  const TraceReader trace = Open();
  const StepSource steps = TraceSteps(trace, 1);
  const Advice of_trace = AdviseOn(steps), of_profile = AdviseOn(TablesOf(steps));
  EXPECT_EQ(AdviceLines(of_profile), AdviceLines(of_trace));
  EXPECT_EQ(ParsedAdvice(of_profile)["formats"][0]["forward"],
            ParsedAdvice(of_trace)["formats"][0]["forward"]);
}

TEST_F(ForwardVerdictTest, AutocastKeepsSomeInFloat32) {
  const nlohmann::ordered_json metadata = {{"autocast_float32", "norm.act\nother.act"}};
  for (int step = 0; step < 2; ++step) {
    WriteBlock(step, {FloatTensor("norm.act", {1e6f}), FloatTensor("fc.act", {40})}, metadata);
  }
  const Advice autocast = AdviseOnTrace({.formats = {"fp16"}});
  EXPECT_EQ(AdviceLines(autocast)[0].find("fp16  trains. Safe loss scales"), 0u)
      << AdviceLines(autocast)[0];
  EXPECT_EQ(AdviceLines(autocast)[1],
            "Based on gradients of parameters and activations and on the forward pass of 2 of 2 "
            "steps. 1 forward tensor that autocast keeps in float32 does not count.");
  EXPECT_EQ(autocast.formats[0].forward.absmax, 40);
  const Advice half = AdviseOnTrace({.formats = {"fp16"}, .recipe = Recipe::kHalf});
  EXPECT_EQ(AdviceLines(half)[0],
            "fp16  fails in forward: norm reaches 1000000 at step 0, the largest fp16 value is "
            "65504. No loss scale helps.");
}

TEST_F(ForwardVerdictTest, ParametersFailToo) {
  WriteBlock(0, {FloatTensor("fc.act", {4}), FloatTensor("fc.weight.value", {-7e4f, 1})});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  EXPECT_EQ(
      AdviceLines(advice)[0],
      "fp16  fails in forward: the stored value of fc.weight reaches 70000 at step 0, the largest "
      "fp16 value is 65504. No loss scale helps.");
  EXPECT_EQ(advice.formats[0].forward.state, ForwardState::kFits);
  EXPECT_EQ(advice.formats[0].values.state, ForwardState::kOverflows);
  EXPECT_EQ(advice.looked_at.back(), Role::kValue);
}

TEST_F(ForwardVerdictTest, ParametersAloneAreNoForwardPass) {
  WriteBlock(0, {FloatTensor("fc.weight.value", {1})});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  EXPECT_NE(AdviceLines(advice)[0].find("trains as far as gradients show"), std::string::npos);
  EXPECT_EQ(AdviceLines(advice)[1].find(
                "Based on gradients and parameters only: the forward pass was not "
                "recorded, and most fp16 failures happen there."),
            0u);
}

TEST_F(ForwardVerdictTest, AMaskIsAConstantOrDoesNotCount) {
  WriteBlock(0,
             {FloatTensor("scores.act", {-1e9f, 3, -1e9f}), FloatTensor("mask.act", {-kInf, 0})});
  const Advice advice = AdviseOnTrace({.formats = {"fp16", "bf16"}});
  EXPECT_EQ(AdviceLines(advice)[0],
            "fp16  fails in forward: scores holds the constant -1e+09 at step 0, the largest fp16 "
            "value is 65504. No loss scale helps.\n  Instead, use bf16.");
  EXPECT_EQ(AdviceLines(advice)[1], "bf16  trains without loss scaling.");
  EXPECT_NE(
      AdviceLines(advice)[2].find("Values recorded as infinite, such as those of masks, do not "
                                  "count: mask."),
      std::string::npos)
      << AdviceLines(advice)[2];
  const Json forward = ParsedAdvice(advice)["formats"][0]["forward"];
  EXPECT_EQ(forward["overflowing"][0]["constant"], true);
  EXPECT_EQ(forward["nonfinite"][0]["tensor"], "mask.act");
  EXPECT_EQ(forward["nonfinite"][0]["inf"], 1);
}

// torch.finfo(dtype).min is another number in 16 bits, and what is added becomes minus infinity.
TEST_F(ForwardVerdictTest, AConstantThatOnlyHidesScoresDoesNotCount) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  for (int step = 0; step < 2; ++step) {
    WriteBlock(step, {FloatTensor("a/masked_fill.act", {kLowest, 3, kLowest}),
                      FloatTensor("b/masked_fill.act", {kLowest / 2, 3, kLowest / 2}),
                      FloatTensor("a/matmul.act", {-1e9f, 2, -1e9f}),
                      FloatTensor("a/where.act", {-1e9f, 2, -1e9f})});
  }
  const Advice advice = AdviseOnTrace({.formats = {"fp16", "bf16"}});
  EXPECT_EQ(AdviceLines(advice)[0].find("fp16  trains. Safe"), 0u) << AdviceLines(advice)[0];
  EXPECT_EQ(AdviceLines(advice)[1], "bf16  trains without loss scaling.");
  EXPECT_NE(AdviceLines(advice)[2].find(
                "The constant of a mask, which is minus infinity in fp16, does not "
                "count: a/matmul, a/where."),
            std::string::npos)
      << AdviceLines(advice)[2];
  WriteBlock(2, {FloatTensor("a/masked_fill.act", {kLowest, 7e4f, kLowest})});
  EXPECT_EQ(AdviceLines(AdviseOnTrace({.formats = {"fp16"}}))[0].find(
                "fp16  fails in forward: a/masked_fill reaches 3."),
            0u);
}

// What the recorder has written, of fp16 alone.
std::string ShadowText(const std::string& fails, const std::string& more,
                       const std::string& plan = "") {
  return R"({"fp16": {"fails": ")" + fails + R"(", "steps": 8, "scale": 1024, )" + more +
         (plan.empty() ? "" : R"(, "plan": )" + plan) + "}}";
}

constexpr const char* kOverflow =
    R"("bad": 5, "overflows": 0, "error": "", "loss": 0.01, "gradients": 0.5, "modules": [],
       "culprits": [{"part": "fc", "module": "fc", "operation": "linear", "operands": 12.5,
                     "result": 81234.5}])";
constexpr const char* kHolds =
    R"("bad": 0, "overflows": 0, "error": "", "loss": 0.01, "gradients": 0.02, "modules": [],
       "culprits": [])";

TEST_F(ForwardVerdictTest, StepsThatWereRunDecide) {
  WriteT5();
  WriteBlock(3, {}, {{"shadow", ShadowText("", kHolds)}});
  const Advice advice = AdviseOnTrace({.formats = {"fp16", "bf16"}});
  EXPECT_EQ(AdviceLines(advice)[0].find("fp16  trains. Safe"), 0u) << AdviceLines(advice)[0];
  EXPECT_EQ(advice.formats[0].forward.state, ForwardState::kFits);
  EXPECT_FALSE(advice.formats[1].shadow);
  EXPECT_EQ(AdviceLines(advice)[2],
            "Based on gradients of parameters and activations and on the forward pass of 2 of 5 "
            "steps. 8 steps were run again in fp16.");
  EXPECT_EQ(AdviseOnTrace({.formats = {"fp16"}, .recipe = Recipe::kHalf}).formats[0].verdict,
            Verdict::kFailsInForward);
  Conversion clamps;
  clamps.overflow = Overflow::kSaturate;
  EXPECT_FALSE(AdviseOnTrace({.formats = {"fp16"}, .conversion = clamps}).formats[0].shadow);
}

TEST_F(ForwardVerdictTest, SafeScalesLeaveRoomForGradientsWithinModules) {
  WriteT5();
  const std::optional<SafeScales> before = AdviseOnTrace({.formats = {"fp16"}}).formats[0].window;
  ASSERT_TRUE(before);
  const auto written = [&](int step, int exponent) {
    const double scale = std::ldexp(1.0, exponent);
    return fmt::format(R"({{"step": {}, "scale": {}, "module": "fc"}})", step, scale);
  };
  const auto shadow = [&](const std::string& ceilings) {
    return ShadowText("", std::string(kHolds) + R"(, "ceilings": [)" + ceilings + "]");
  };
  // Where the recorded gradients overflow, too, nothing is new.
  WriteBlock(3, {}, {{"shadow", shadow(written(2, before->high))}});
  FormatAdvice fp16 = AdviseOnTrace({.formats = {"fp16"}}).formats[0];
  EXPECT_EQ(fp16.window->high, before->high);
  EXPECT_TRUE(ParsedAdvice(AdviseOnTrace({.formats = {"fp16"}}))["formats"][0]["shadow"]["ceiling"]
                  .is_null());

  WriteBlock(
      3, {},
      {{"shadow", shadow(written(1, before->high - 2) + ", " + written(2, before->high - 5))}});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  fp16 = advice.formats[0];
  EXPECT_EQ(fp16.window->high, before->high - 5);
  EXPECT_EQ(fp16.window->low, before->low);
  EXPECT_EQ(fp16.high.tensor, "fc");
  EXPECT_LE(*fp16.scale, std::ldexp(1.0, before->high - 5 - kHeadroom));
  EXPECT_NE(AdviceLines(advice)[1].find(fmt::format(
                "In fp16, gradients within fc overflow above 2^{} at step 2", before->high - 5)),
            std::string::npos)
      << AdviceLines(advice)[1];

  // Below what harm allows, too: the step has shown that it does.
  WriteBlock(3, {}, {{"shadow", shadow(written(2, before->low - 3))}});
  fp16 = AdviseOnTrace({.formats = {"fp16"}}).formats[0];
  EXPECT_EQ(fp16.window->high, before->low - 3);
  EXPECT_EQ(fp16.window->low, before->low - 3);
}

TEST_F(ForwardVerdictTest, WhatBreaksFirstIsNamed) {
  const std::string plan =
      R"({"keep_float32": ["fc", "a/mul"], "sources": ["", "model.py:12"], "share": 0.25,
          "loss_in_float32": false, "steps": 6, "scale": 4096})";
  WriteBlock(0, {}, {{"shadow", ShadowText("not finite", kOverflow, plan)}});
  const Advice advice = AdviseOnTrace({.formats = {"fp16", "bf16"}});
  EXPECT_EQ(AdviceLines(advice)[0],
            "fp16  fails in forward: linear in fc reaches 81234.5, the largest fp16 value is 65504 "
            "(5 of 8 steps that were run in fp16). No loss scale helps.\n"
            "  Keep fc and a/mul (model.py:12) in float32, 25 % of the multiplications: then fp16 "
            "trains. Safe loss scales: 2^-15 to 2^15 (checked at 6 steps). Or use bf16.\n"
            "    dlsim.keep_float32(model, ['fc', 'a/mul'])");
  const Json fp16 = ParsedAdvice(advice)["formats"][0];
  EXPECT_EQ(fp16["shadow"]["fails"], "not finite");
  EXPECT_EQ(fp16["change"]["because"], (Json{"fc.act"}));
  EXPECT_EQ(fp16["change"]["checked"], true);
  EXPECT_EQ(fp16["change"]["steps"], 6);
}

TEST_F(ForwardVerdictTest, EachWayToFailHasItsSentence) {
  struct {
    const char *fails, *figures, *sentence;
    Verdict verdict;
  } cases[] = {
      {"not finite",
       R"("bad": 8, "overflows": 0, "error": "RuntimeError: no", "loss": null, "gradients": null,
          "modules": [], "culprits": [{"part": "a/masked_fill", "module": "a",
          "operation": "masked_fill", "operands": null, "result": null}])",
       "fails in forward: masked_fill in a raises RuntimeError: no (8 of 8 steps that were run in "
       "fp16). No loss scale helps.",
       Verdict::kFailsInForward},
      {"not finite",
       R"("bad": 8, "overflows": 8, "error": "", "loss": null, "gradients": null,
          "modules": ["fc"], "culprits": [])",
       "fails in backward: at 8 of 8 steps that were run in fp16, no loss scale keeps the "
       "gradients "
       "of fc finite.",
       Verdict::kNoScaleIsSafe},
      {"loss",
       R"("bad": 0, "overflows": 0, "error": "", "loss": 0.25, "gradients": 0.5, "modules": ["fc"],
          "culprits": [])",
       "fails in forward: the mean loss of 8 steps that were run in fp16 is off by 25 %. No loss "
       "scale helps.",
       Verdict::kFailsInForward},
      {"gradients",
       R"("bad": 0, "overflows": 0, "error": "", "loss": 0.01, "gradients": 0.5,
          "modules": ["fc", "a"], "culprits": [])",
       "fails in forward: in 8 steps that were run in fp16, mean gradients of rows are off by 50 "
       "%, "
       "most in fc, a.",
       Verdict::kFailsInForward}};
  for (const auto& [fails, figures, sentence, verdict] : cases) {
    WriteBlock(0, {}, {{"shadow", ShadowText(fails, figures)}});
    const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
    EXPECT_EQ(AdviceLines(advice)[0],
              std::string("fp16  ") + sentence +
                  "\n  No part of the model was found that helps if it stays in "
                  "float32, short of all of it.");
    EXPECT_EQ(advice.formats[0].verdict, verdict);
  }
}

TEST_F(ForwardVerdictTest, WhyNoStepCouldBeRunIsSaid) {
  WriteBlock(0, {}, {{"shadow", R"({"why": "it runs under torch.func"})"}});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  EXPECT_NE(AdviceLines(advice)[1].find(
                " No step could be run in the formats: it runs under torch.func."),
            std::string::npos)
      << AdviceLines(advice)[1];
}

TEST_F(ForwardVerdictTest, ADamagedShadowIsOneLine) {
  for (const char* text : {"{", "[]", R"({"fp16": 3})", R"({"fp16": {"fails": "why"}})"}) {
    WriteBlock(0, {}, {{"shadow", text}});
    EXPECT_THROW(AdviseOnTrace({.formats = {"fp16"}}), Error) << text;
  }
}

TEST_F(ForwardVerdictTest, LessThanABinadeIsARisk) {
  WriteBlock(0, {FloatTensor("a.act", {40000, 1}), FloatTensor("b.act", {30000})});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  ASSERT_EQ(AdviceLines(advice).size(), 3u);
  EXPECT_EQ(AdviceLines(advice)[2],
            "At risk in fp16 in forward: a reaches 40000 at step 0, 0.71 binades below overflow.");
}

TEST_F(ForwardVerdictTest, UnderflowOfOutputsIsARiskButNotThatOfParameters) {
  WriteBlock(0, {FloatTensor("a.act", {2e-8f, 4e-8f}), FloatTensor("a/mul.act", {1e-8f}),
                 FloatTensor("a.weight.value", {1e-8f})});
  const Advice advice = AdviseOnTrace({.formats = {"fp16"}});
  ASSERT_EQ(AdviceLines(advice).size(), 3u);
  EXPECT_EQ(AdviceLines(advice)[2],
            "At risk in fp16 in forward: a/mul loses 100 % to underflow at step 0, a loses 20 % to "
            "underflow at step 0.");
}

TEST_F(ForwardVerdictTest, AnOutputThatVanishesAtMostStepsFails) {
  for (int step = 0; step < 4; ++step) {
    WriteBlock(step, {FloatTensor("early.act", {step < 2 ? 1e-8f : 1.0f}),
                      FloatTensor("head.act", {step == 0 ? 1.0f : 1e-8f, 0}),
                      FloatTensor("head.weight.value", {1e-8f})});
  }
  const Advice advice = AdviseOnTrace({.formats = {"fp16", "bf16"}});
  EXPECT_EQ(AdviceLines(advice)[0],
            "fp16  fails in forward: head loses 100 % to underflow at step 1, the smallest fp16 "
            "value is 6e-08. No loss scale helps.\n  Instead, use bf16.");
  EXPECT_EQ(advice.formats[0].verdict, Verdict::kFailsInForward);
  EXPECT_EQ(AdviceLines(advice)[1], "bf16  trains without loss scaling.");
  const Json forward = ParsedAdvice(advice)["formats"][0]["forward"];
  EXPECT_EQ(forward["state"], "fits");
  EXPECT_EQ(forward["vanishing"],
            Json::array({Json{
                {"tensor", "head.act"}, {"steps", 3}, {"energy_lost", 1.0}, {"worst_step", 1}}}));
  EXPECT_EQ(ParsedAdvice(advice)["formats"][0]["values"]["vanishing"], Json::array());
}

// The norm of an output times that of its gradient: a millionth of that of head, then a tenth.
TEST_F(ForwardVerdictTest, WhatVanishesMayIfTheLossHardlyDependsOnIt) {
  const auto write = [&](float gradient) {
    WriteBlock(0,
               {FloatTensor("head.act", {1}), FloatTensor("head.act_grad", {0.01f}),
                FloatTensor("tiny/mul.act", {1e-8f}), FloatTensor("tiny/mul.act_grad", {gradient}),
                FloatTensor("other/mul.act", {1e-8f})});
    return AdviseOnTrace({.formats = {"fp16"}}).formats[0].forward.Vanishing().size();
  };
  EXPECT_EQ(write(1), 0u);
  EXPECT_EQ(write(1e5f), 1u);
}

TEST_F(ForwardVerdictTest, ACopyIsAnInputOfItsModule) {
  WriteBlock(0, {FloatTensor("fc/to.act", {1e5f}), FloatTensor("fc.act", {4})});
  EXPECT_EQ(AdviceLines(AdviseOnTrace({.formats = {"fp16"}}))[0],
            "fp16  fails in forward: an input of fc reaches 100000 at step 0, the largest fp16 "
            "value is 65504. No loss scale helps.");
}

TEST_F(ForwardVerdictTest, TuneSaysTheSame) {
  WriteT5();
  TuneRequest request;
  request.formats = {"fp16", "bf16"};
  const TraceReader trace = Open();
  const StepSource steps = TraceSteps(trace);
  const TuneResult result = Tune(steps, request, AdviseOn(steps, request));
  EXPECT_EQ(result.formats[0].verdict, Verdict::kFailsInForward);
  EXPECT_EQ(result.formats[0].forward.Overflowing().front()->name, "block.0.wo.act");
  EXPECT_EQ(result.formats[0].reason.find("fails in forward: block.0.wo reaches 66246"), 0u);
  EXPECT_EQ(result.formats[1].forward.state, ForwardState::kFits);
}

}  // namespace
}  // namespace dlsim::sim
