// SPDX-License-Identifier: Apache-2.0
// What people get wrong in configurations: slips, null, numbers in quotes, keys given twice.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

TEST(ConfigMistakes, NullIsRefusedWhereTheOriginalHasAType) {
  for (const std::string key :
       {"enabled", "fp16_type", "loss_scaling_factor", "steps_per_increase"}) {
    ExpectConfigError(Trainer({key + ": null"}),
                      "f:4: trainer.init.precision." + key +
                          ": wrong type, expected a value, or no such key, got null");
  }
  ExpectConfigError("trainer: {init: {loop: {grad_accum_steps: ~}}}",
                    "f:1: trainer.init.loop.grad_accum_steps: wrong type, expected a value, or no "
                    "such key, got null");
  for (const std::string key :
       {"initial_loss_scale", "min_loss_scale", "max_loss_scale", "max_gradient_norm",
        "max_gradient_value", "log_loss_scale", "precision_opt_level"}) {
    EXPECT_NO_THROW(Interpret(Trainer({key + ": null"}))) << key;
  }
}

TEST(ConfigMistakes, SlipsAreNotedInEveryLevelOfATrainer) {
  const TrainingConfig config = Interpret(
      "trainer: {init: {precison: {}, backend: {backend_tpye: GPU}, Loop: {}, "
      "loop: {grad_acum_steps: 2}}}");
  for (const std::string note :
       {"trainer.init.precison is not read (did you mean 'precision'?)",
        "trainer.init.Loop is not read (did you mean 'loop'?)",
        "trainer.init.backend.backend_tpye is not read (did you mean 'backend_type'?)",
        "trainer.init.loop.grad_acum_steps is not read (did you mean 'grad_accum_steps'?)"}) {
    EXPECT_TRUE(HasNote(config, note)) << note;
  }
  ExpectConfigError(Trainer({"fp16_type: CBFloat16"}),
                    "f:4: trainer.init.precision.fp16_type: unknown name (did you mean "
                    "'cbfloat16'?), expected one of float16, bfloat16, cbfloat16, got 'CBFloat16'");
}

TEST(ConfigMistakes, NumbersInQuotesAreNumbers) {
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: '64.0'",
                         "steps_per_increase: \"5\"", "max_gradient_norm: '1e-1'"}));
  EXPECT_EQ(PolicyOf(config), "cerebras-2.10 fp16_type=float16 loss_scale=64.0");
  EXPECT_EQ(config.clipping.max_norm, 0.1);
}

TEST(ConfigMistakes, AKeyGivenTwiceMattersWhereItIsRead) {
  const TrainingConfig config = Interpret(
      "trainer:\n  init:\n    callbacks: []\n    precision: {fp16_type: float16}\n"
      "    callbacks: []\n");
  EXPECT_EQ(config.formats, Texts{"fp16"});
  ExpectConfigError(Trainer({"fp16_type: float16", "fp16_type: bfloat16"}),
                    "f:5: trainer.init.precision.fp16_type: duplicate key 'fp16_type'");
}

TEST(ConfigMistakes, SlipsAreNotedInOldFiles) {
  const TrainingConfig config = Interpret(
      "model: {fp16_tpye: float16, MIXED_PRECISION: True}\noptimizer: {optimizer_type: SGD}\n"
      "runconfig: {target_devise: GPU}\n");
  for (const std::string note :
       {"model.fp16_tpye is not read (did you mean 'fp16_type'?)",
        "model.MIXED_PRECISION is not read (did you mean 'mixed_precision'?)",
        "runconfig.target_devise is not read (did you mean 'target_device'?)"}) {
    EXPECT_TRUE(HasNote(config, note)) << note;
  }
  EXPECT_TRUE(HasNote(Interpret("optimizer: {optimizer_type: SGD}\nrunconfg: {}\n"),
                      "runconfg is not read (did you mean 'runconfig'?)"));
}

TEST(ConfigMistakes, SlipsAreNotedInDeepSpeedsFiles) {
  const TrainingConfig config = Interpret(
      R"({"fp16": {}, "bf16": {"enabld": true}, "zero_optimisation": {"stage": 2},
          "gradient_cliping": 1.0, "zero_optimization": {"Stage": 1}})");
  for (const std::string note :
       {"zero_optimisation is not read (did you mean 'zero_optimization'?)",
        "gradient_cliping is not read (did you mean 'gradient_clipping'?)",
        "bf16.enabld is not read (did you mean 'enabled'?)",
        "zero_optimization.Stage is not read (did you mean 'stage'?)"}) {
    EXPECT_TRUE(HasNote(config, note)) << note;
  }
}

}  // namespace
}  // namespace dlsim::sim
