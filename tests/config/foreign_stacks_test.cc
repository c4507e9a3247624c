// SPDX-License-Identifier: Apache-2.0
// Configurations of stacks that are not read: they are named, with the options to give instead.
#include "sim/config/foreign_stacks.h"

#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

void ExpectStack(std::string_view text, const std::string& stack, const std::string& expected) {
  ExpectConfigError(
      text, "f:1: a configuration of " + stack + ", which is not read, expected " + expected);
}

TEST(ForeignStacks, AreNamedWithTheirPolicy) {
  ExpectStack("actor_rollout_ref: {actor: {strategy: torchtitan, torchtitan: {dtype: bfloat16}}}\n",
              "verl", "--policy static --format bf16");
  ExpectStack("base_model: x\ndatasets: []\n", "axolotl", "--policy torch");
  ExpectStack("base_model: x\ndatasets: []\nbf16: auto\n", "axolotl",
              "--policy static --format bf16");
  ExpectStack("tuner_type: lora\nmodel: x\n", "ms-swift", "--policy torch");
}

// Parts that decide and are not read; files that train nothing.
TEST(ForeignStacks, FilesOfStacksThatAreReadMayStayUnread) {
  ExpectStack("distributed_type: MEGATRON_LM\nmixed_precision: fp16\n", "Accelerate",
              "--policy torch --format fp16");
  ExpectStack("per_device_train_batch_size: 1\nfp16: true\nfp8: true\n",
              "Hugging Face TrainingArguments", "--policy torch --format fp16");
  ExpectStack("stage: sft\nfinetuning_type: lora\nfp16: true\n", "LLaMA-Factory",
              "--policy torch --format fp16");
  ExpectStack("trainer: {precision: 16, devices: 1}\n", "NeMo or PyTorch Lightning",
              "--policy torch --format fp16");
  ExpectStack("trainer: {precision: 16, max_steps: 1, plugins: {a: 1}}\n",
              "NeMo or PyTorch Lightning", "--policy torch --format fp16");
  ExpectStack("trainer: {precision: 16, max_steps: 1, strategy: deepspeed_stage_2}\n",
              "NeMo or PyTorch Lightning", "--policy torch --format fp16");
  ExpectStack(
      "model: {native_amp_init_scale: 4294967296, native_amp_growth_interval: 1000}\n"
      "trainer: {precision: 16}\n",
      "NeMo with Megatron",
      "--policy apex-hysteresis --format fp16 --set init_scale=4294967296 --set "
      "growth_interval=1000");
  ExpectStack("trainer: {precision: 32}\n", "NeMo or PyTorch Lightning",
              "nothing to simulate in float32, or a run in 16 bits");
  ExpectStack("MODEL_ARGS: {--fp16: true}\n", "Megatron-LM without training",
              "--policy megatron --format fp16");
  ExpectStack("task: {a: 1}\ncriterion: {a: 1}\n", "fairseq", "--policy fairseq");
}

// What the options name exists.
TEST(ForeignStacks, ThePoliciesTakeTheSettings) {
  EXPECT_NO_THROW(
      MakePolicy("apex-hysteresis", {"init_scale=4", "growth_interval=5", "hysteresis=2"}, ""));
}

TEST(ForeignStacks, ADeepSpeedFileIsTheBetterSource) {
  ExpectStack("base_model: x\ndatasets: []\ndeepspeed: ds.json\nfp16: true\n", "axolotl",
              "--config with the DeepSpeed file 'ds.json'");
}

TEST(ForeignStacks, AKindThatIsNamedIsTaken) {
  const std::string text = "task: {a: 1}\ncriterion: {a: 1}\noptimizer: {max_gradient_norm: 1.0}\n";
  EXPECT_EQ(Interpret(text, {.backend = {}, .kind = "cerebras-old"}).clipping.max_norm, 1.0);
}

}  // namespace
}  // namespace dlsim::sim
