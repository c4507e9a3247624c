// SPDX-License-Identifier: Apache-2.0
// What people get wrong in configurations: slips, null, numbers in quotes, keys given twice.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

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

}  // namespace
}  // namespace dlsim::sim
