// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/replay.h"
#include "tests/support/special_values.h"

#include <gtest/gtest.h>

#include <limits>

namespace dlsim::sim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Figures of torch.nn.utils.clip_grad_norm_ (torch 1.13) and tf.clip_by_global_norm.
TEST(ClipCoefficient, TorchAddsToTheNorm) {
  EXPECT_EQ(ClipCoefficient(ClipRule::kTorch, 1, 4), 1.0f / (4.0f + 1e-6f));
  EXPECT_LT(ClipCoefficient(ClipRule::kTorch, 1, 1), 1.0f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kTorch, 0.3f, 0.50215548f), 0.59742337f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kTorch, 1, 0.5f), 1.0f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kTorch, 1, kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(ClipCoefficient(ClipRule::kTorch, 1, kQuietNan)));
}

TEST(ClipCoefficient, FairseqClipsOnlyAboveTheLimit) {
  EXPECT_EQ(ClipCoefficient(ClipRule::kFairseq, 1, 4), 0.25f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kFairseq, 1, 1), 1.0f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kFairseq, 1, 0.5f), 1.0f);
}

TEST(ClipCoefficient, TensorFlowDoesNot) {
  EXPECT_EQ(ClipCoefficient(ClipRule::kTensorFlow, 1, 4), 0.25f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kTensorFlow, 1, 1), 1.0f);
  EXPECT_EQ(ClipCoefficient(ClipRule::kTensorFlow, 1, 0.5f), 1.0f);
  EXPECT_TRUE(std::isnan(ClipCoefficient(ClipRule::kTensorFlow, 1, kInfinity)));
  EXPECT_TRUE(std::isnan(ClipCoefficient(ClipRule::kTensorFlow, 1, kQuietNan)));
}

TEST(Clips, TellsRoundingFromClipping) {
  EXPECT_LT(ClipCoefficient(ClipRule::kTensorFlow, 41, 5), 1.0f);
  EXPECT_FALSE(Clips(ClipRule::kTensorFlow, 41, 5));
  EXPECT_TRUE(Clips(ClipRule::kTensorFlow, 41, 42));
  EXPECT_TRUE(Clips(ClipRule::kTorch, 1, 1));
  EXPECT_FALSE(Clips(ClipRule::kTorch, 1, 0.5f));
}

}  // namespace
}  // namespace dlsim::sim
