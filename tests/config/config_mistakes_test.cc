// SPDX-License-Identifier: Apache-2.0
// What people get wrong in configurations: slips, null, numbers in quotes, keys given twice.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

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
