// SPDX-License-Identifier: Apache-2.0
// What the policies of fairseq, metaseq, fairscale, flax, jmp, MXNet and MindSpore promise beyond
// the recorded runs: errors, notes, checkpoints and parameters that nobody recorded.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(FairseqJaxPolicies, KeepTheirPromises) {
  const double inf = std::numeric_limits<double>::infinity();
  ExpectPromises({
      {"fairseq", {}, "ok*1999", 0x1p15},
      {"fairseq", {}, "ok*2000", 0x1p16},
      {"fairseq", {"scale_window=3"}, "ok overflow ok*2", 0x1p14},
      {"fairseq", {"scale_window=3"}, "ok overflow ok*3", 0x1p15},
      {"fairseq", {"scale_window=-3"}, "ok*3", 0x1p16},
      {"fairseq", {"tolerance=0.5"}, "ok*2 overflow", 0x1p15},
      {"fairseq", {"tolerance=0.5"}, "ok*2 overflow*2", 0x1p14},
      {"fairseq", {"tolerance=1"}, "overflow*2", 0x1p13},
      {"fairseq", {"tolerance=1.5"}, "overflow*9", 0x1p15},
      {"fairseq", {"tolerance=1.5", "scale_window=2"}, "overflow ok*2 overflow", 0x1p15},
      {"fairseq", {"threshold=2^14"}, "overflow*9", 0x1p14},
      {"fairseq", {"threshold=2^20"}, "overflow", 0x1p20},
      {"metaseq", {}, "overflow*7", 0x1p-5},
      {"metaseq", {}, "overflow*99", 0x1p-5},
      {"metaseq", {"threshold=0.5"}, "overflow*99", 0.5},
      {"metaseq", {"threshold=2^-6"}, "overflow*99", 0x1p-5},
      {"metaseq", {"init_scale=2^-9"}, "overflow*9", 0x1p-9},
      {"metaseq", {"scale_window=2"}, "ok*3", 8},
      {"metaseq", {"scale_window=2"}, "ok*4", 16},
      {"metaseq", {"scale_window=2"}, "ok*7", 16},
      {"metaseq", {"scale_window=2"}, "ok*8", 32},
      {"fairscale", {}, "ok*9999", 0x1p10},
      {"fairscale", {}, "ok*10000", 0x1p11},
      {"fairscale", {"growth_interval=0"}, "ok*999", 0x1p10},
      {"fairscale", {"max_scale=512"}, "ok", 0x1p10},
      {"fairscale", {"max_scale=512", "growth_interval=1"}, "ok", 512},
      {"fairscale", {"min_scale=8", "max_scale=4"}, "overflow", 8},
      {"flax", {}, "ok*2000", 0x1p16},
      {"flax", {}, "ok*2001", 0x1p17},
      {"flax", {"growth_interval=0"}, "ok*3", 0x1p19},
      {"flax", {"growth_interval=-1"}, "ok*9999", 0x1p16},
      {"flax", {"growth_interval=1"}, "ok*9999", std::numeric_limits<float>::max()},
      {"flax", {"minimum_scale=none"}, "overflow*165", 0x1p-149},
      {"flax", {"minimum_scale=none"}, "overflow*166 ok*9999", 0},
      {"flax", {}, "overflow*200", 0x1p-126},
      {"flax", {"minimum_scale=2^17"}, "overflow", 0x1p17},
      {"jmp", {}, "ok*1999", 0x1p15},
      {"jmp", {}, "ok*2000", 0x1p16},
      {"jmp", {}, "overflow*99", 1},
      {"jmp", {"min_loss_scale=2^-20"}, "overflow*99", 0x1p-20},
      {"jmp", {"period=1"}, "ok*999", 0x1p127},
      {"jmp", {"period=0"}, "ok*9999", 0x1p15},
      {"jmp", {"period=-3"}, "ok*9999", 0x1p15},
      {"jmp", {"loss_scale=1e39"}, "overflow*99", inf},
      {"mxnet", {}, "ok*2000", 0x1p16},
      {"mxnet", {}, "ok*2001", 0x1p17},
      {"mxnet", {}, "overflow", 0x1p16},
      {"mxnet", {}, "overflow ok", 0x1p15},
      {"mxnet", {}, "overflow*2 ok", 0x1p14},
      {"mxnet", {"max_loss_scale=512", "scale_seq_len=1"}, "ok*2", 512},
      {"mxnet", {"scale_seq_len=0"}, "overflow ok", 0x1p17},
      {"mxnet", {"scale_seq_len=0"}, "ok*9999", 0x1p16},
      {"mindspore-amp", {}, "ok*2000", 0x1p25},
      {"mindspore-amp", {}, "overflow*99", 1},
      {"mindspore-amp", {"scale_window=1"}, "ok*999", 0x1p127},
      {"mindspore-cell", {}, "ok*1999", 0x1p24},
      {"mindspore-cell", {}, "ok*2000", 0x1p25},
      {"mindspore-cell", {"scale_window=1"}, "ok*104 overflow*9", inf},
      {"mindspore-cell", {"scale_window=-5"}, "ok*2", 0x1p26},
      {"mindspore-cell", {"loss_scale_value=0.5"}, "overflow", 1},
      {"mindspore-cell", {"scale_factor=3", "loss_scale_value=5"}, "overflow", 5 * (1 / 3.0f)},
      {"mindspore-amp", {"scale_factor=3", "scale_value=5"}, "overflow", 5 / 3.0f},
  });
}

TEST(Fairseq, StopsAtTheMinimumAndStumblesWhereItGoesOn) {
  LossScaler scaler = MakePolicy("fairseq", {"init_scale=4", "min_loss_scale=1"}).scaler;
  EXPECT_EQ(EventAfter(scaler, "overflow"), "");
  const ScalerDecision last = Advance(scaler, "overflow").back();
  ASSERT_TRUE(last.event);
  EXPECT_TRUE(last.skip);
  EXPECT_TRUE(last.event->fatal);
  EXPECT_EQ(last.event->step, 1);
  EXPECT_EQ(last.event->type, "FloatingPointError");
  EXPECT_EQ(last.event->message,
            "Minimum loss scale reached (1.0). Your loss is probably exploding. Try lowering the "
            "learning rate, using gradient clipping or increasing the batch size.");
  EXPECT_EQ(scaler.scale(), 2);
  // The iteration was not counted: nothing lies between it and the next overflow, and a clean step
  // is 0 steps after the overflow, which every window divides.
  EXPECT_EQ(EventAfter(scaler, "overflow"), "ZeroDivisionError: float division by zero");
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_EQ(EventAfter(scaler, "ok"), "");
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(Fairseq, ChecksTheMinimumWhereToleranceKeepsTheScale) {
  LossScaler scaler = MakePolicy("fairseq", {"init_scale=1e-5", "tolerance=0.5"}).scaler;
  const ScalerDecision last = Advance(scaler, "ok*9 overflow").back();
  ASSERT_TRUE(last.event);
  EXPECT_EQ(last.event->type, "FloatingPointError");
  EXPECT_EQ(scaler.scale(), 1e-5);
}

TEST(Fairseq, RaisesWhatPythonRaises) {
  LossScaler no_window = MakePolicy("fairseq", {"scale_window=0"}).scaler;
  const ScalerDecision first = Advance(no_window, "ok").back();
  ASSERT_TRUE(first.event);
  EXPECT_EQ(first.event->type, "ZeroDivisionError");
  EXPECT_EQ(first.event->message, "integer modulo by zero");
  EXPECT_TRUE(first.event->fatal);
  EXPECT_FALSE(first.skip);  // the optimizer's step comes before the update
  EXPECT_EQ(no_window.scale(), 0x1p15);

  LossScaler no_factor = MakePolicy("fairseq", {"scale_factor=0"}).scaler;
  EXPECT_EQ(EventAfter(no_factor, "overflow"), "ZeroDivisionError: float division by zero");
  EXPECT_EQ(no_factor.scale(), 0x1p15);

  LossScaler float_window = MakePolicy("metaseq", {"scale_factor=0", "scale_window=1"}).scaler;
  EXPECT_EQ(EventAfter(float_window, "ok"), "");
  EXPECT_EQ(EventAfter(float_window, "ok"), "ZeroDivisionError: float modulo");

  // The trainer catches OverflowError, the sign of an ordinary overflow.
  LossScaler huge = MakePolicy("metaseq", {"scale_factor=1e-308", "scale_window=2^20"}).scaler;
  const ScalerDecision overflow = Advance(huge, "overflow").back();
  ASSERT_TRUE(overflow.event);
  EXPECT_EQ(overflow.event->type, "OverflowError");
  EXPECT_EQ(overflow.event->message, "cannot convert float infinity to integer");
  EXPECT_FALSE(overflow.event->fatal);
  EXPECT_TRUE(overflow.skip);
}

TEST(Metaseq, WindowIsAnIntUntilGrowthMakesItAFloat) {
  LossScaler scaler = MakePolicy("metaseq", {"scale_window=3"}).scaler;
  EXPECT_EQ(Counter(scaler, "scale_window"), (decltype(NamedValue::value){int64_t{3}}));
  Advance(scaler, "ok*3");
  EXPECT_EQ(Counter(scaler, "scale_window"), (decltype(NamedValue::value){6.0}));
  Advance(scaler, "overflow*2");
  EXPECT_EQ(Counter(scaler, "scale_window"), (decltype(NamedValue::value){int64_t{1}}));
  EXPECT_EQ(scaler.Restore("scale_window", 1.5), LossScaler::Restored::kOk);
  EXPECT_EQ(Counter(scaler, "scale_window"), (decltype(NamedValue::value){1.5}));
  EXPECT_EQ(scaler.Restore("scale_window", std::numeric_limits<double>::infinity()),
            LossScaler::Restored::kBadValue);
}

TEST(Mxnet, NextScaleIsHexTextAndRestartsWithTheScale) {
  LossScaler scaler = MakePolicy("mxnet").scaler;
  Advance(scaler, "overflow");
  EXPECT_EQ(std::get<std::string>(Counter(scaler, "next_loss_scale")), "0x1.0000000000000p+15");
  scaler.RestartAt(8);
  EXPECT_EQ(scaler.scale(), 8);
  Advance(scaler, "ok");
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.Restore("next_loss_scale", 4), LossScaler::Restored::kOk);
  EXPECT_EQ(scaler.scale(), 8);
  Advance(scaler, "ok");
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(Jmp, CounterFollowsPythonsRemainder) {
  LossScaler scaler = MakePolicy("jmp", {"period=-3"}).scaler;
  for (const int64_t counter : {-2, -1, 0, -2}) {
    Advance(scaler, "ok");
    EXPECT_EQ(std::get<int64_t>(Counter(scaler, "counter")), counter);
  }
  LossScaler by_zero = MakePolicy("jmp", {"period=0"}).scaler;
  Advance(by_zero, "ok");
  EXPECT_EQ(std::get<int64_t>(Counter(by_zero, "counter")), 0);
}

TEST(FairseqJaxPolicies, Int32CountersWrapAround) {
  LossScaler flax = MakePolicy("flax").scaler;
  ASSERT_EQ(flax.Restore("fin_steps", 2147483647), LossScaler::Restored::kOk);
  Advance(flax, "ok");
  EXPECT_EQ(std::get<int64_t>(Counter(flax, "fin_steps")), -2147483648);

  LossScaler cell = MakePolicy("mindspore-cell").scaler;
  ASSERT_EQ(cell.Restore("cur_iter", 2147483647), LossScaler::Restored::kOk);
  ASSERT_EQ(cell.Restore("last_overflow_iter", -1), LossScaler::Restored::kOk);
  Advance(cell, "ok");  // 2^31 steps are -2^31, which no window reaches
  EXPECT_EQ(cell.scale(), 0x1p24);
  EXPECT_EQ(std::get<int64_t>(Counter(cell, "cur_iter")), -2147483648);
}

TEST(FairseqJaxPolicies, FollowTheRulesOfTheirStacks) {
  using enum FiniteTest;
  const struct {
    std::string_view policy;
    FiniteTest finite_test;
    ScaleGranularity granularity;
    Kept checkpoint;
  } rules[] = {
      {"fairseq", kScaledNorm, ScaleGranularity::kModel, Kept::kScale},
      {"metaseq", kScaledNorm, ScaleGranularity::kModel, Kept::kScale},
      {"fairscale", kUnscaledElementwise, ScaleGranularity::kLayer, Kept::kNothing},
      {"flax", kUnscaledElementwise, ScaleGranularity::kModel, Kept::kAll},
      {"jmp", kUnscaledElementwise, ScaleGranularity::kModel, Kept::kAll},
      {"mxnet", kElementwise, ScaleGranularity::kModel, Kept::kNothing},
      {"mindspore-amp", kUnscaledElementwise, ScaleGranularity::kModel, Kept::kNothing},
      {"mindspore-cell", kUnscaledElementwise, ScaleGranularity::kModel, Kept::kAll},
  };
  for (const auto& [name, finite_test, granularity, checkpoint] : rules) {
    const PolicyInfo& policy = FindPolicy(name);
    EXPECT_EQ(policy.rules.finite_test, finite_test) << name;
    EXPECT_EQ(policy.rules.granularity, granularity) << name;
    EXPECT_EQ(policy.rules.optimizer_skip, OptimizerSkip::kTogether) << name;
    EXPECT_EQ(policy.checkpoint, checkpoint) << name;
  }
}

}  // namespace
}  // namespace dlsim::sim
