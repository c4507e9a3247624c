// SPDX-License-Identifier: Apache-2.0
// Configurations of Accelerate, Megatron-LM, fairseq, Hugging Face's Trainer, Lightning and NeMo.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

TEST(ConfigAccelerate, Fp16IsPytorchsScaler) {
  const std::string type = "distributed_type: FSDP\nmixed_precision: ";
  ExpectMeaning(type + "fp16\n", {"Accelerate", {"fp16"}, "torch"});
  ExpectMeaning(type + "bf16\n", {"Accelerate", {"bf16"}, kNothing});
  ExpectMeaning(type + "'no'\n", {"Accelerate", {}, kNothing});
  ExpectMeaning(type + "FP16\n", {"Accelerate", {"fp16"}, "torch"});
  ExpectConfigError(
      type + "no\n",
      "f:2: mixed_precision: 'bool' object has no attribute 'lower', expected 'no' in "
      "quotes, got false");
  EXPECT_TRUE(HasNote(Interpret(type + "fp16\n"), "GradScalerKwargs are code"));
}

TEST(ConfigHuggingFace, WhatItsTrainersRefuseOrReadDifferentlyIsRefused) {
  const std::string arguments = "per_device_train_batch_size: 1\n";
  const std::string neither =
      "f:1: neither fp16 nor bf16 is given: transformers' Trainer computes in float32 then, TRL's "
      "trainers since 0.20 in bf16, expected fp16 or bf16, or --policy static --format bf16";
  ExpectConfigError(arguments, neither);
  ExpectConfigError(arguments + "fp16: false\n", neither);
  ExpectConfigError(arguments + "fp16: false\nbf16: null\n", neither);
  const std::string fp16 = arguments + "fp16: true\n";
  ExpectConfigError(arguments + "fp16: 'false'\n",
                    "f:2: fp16: text, which the original software always takes as true, expected "
                    "true or false, got 'false'");
  ExpectConfigError(
      fp16 + "max_grad_norm: '0.3'\n",
      "f:3: max_grad_norm: text in quotes, where the original software needs a number, "
      "expected a number, got '0.3'");
  ExpectConfigError(fp16 + "max_grad_norm: null\n",
                    "f:3: max_grad_norm: transformers 5 refuses null, expected a number; 0 is off");
  EXPECT_TRUE(HasNote(Interpret(fp16 + "fp16_backend: amp\n"), "gone from transformers 5"));
}

// trainer_config_process: the values of both must match.
TEST(ConfigHuggingFace, DeepSpeedsValuesMustMatchTheArguments) {
  const auto with = [](const std::string& arguments, const std::string& deepspeed) {
    return "per_device_train_batch_size: 4\n" + arguments + "deepspeed: {" + deepspeed +
           "zero_optimization: {stage: 2}}\n";
  };
  const std::string words =
      " differs from the arguments of Hugging Face's trainer, which refuses it, expected ";
  struct Case {
    std::string arguments, deepspeed, line;
  };
  for (const Case& c : std::vector<Case>{
           {"", "gradient_accumulation_steps: 2, ",
            "gradient_accumulation_steps:" + words + "1 or auto, got 2"},
           {"max_grad_norm: 0.5\n", "gradient_clipping: 1.0, ",
            "gradient_clipping:" + words + "0.5 or auto, got 1.0"},
           {"", "fp16: {enabled: true}, ", "fp16.enabled:" + words + "false or auto, got true"},
           {"bf16: true\n", "bf16: {enabled: false}, ",
            "bf16.enabled:" + words + "true or auto, got false"},
           {"", "train_micro_batch_size_per_gpu: 8, ",
            "train_micro_batch_size_per_gpu:" + words + "4 or auto, got 8"}}) {
    const std::string line = c.arguments.empty() ? "2" : "3";
    ExpectConfigError(with(c.arguments, c.deepspeed), "f:" + line + ": " + c.line);
  }
  const TrainingConfig same = Interpret(
      with("fp16: true\ngradient_accumulation_steps: 2\nmax_grad_norm: 1\n",
           "fp16: {enabled: true}, gradient_accumulation_steps: 2, gradient_clipping: 1.0, "));
  EXPECT_EQ(same.formats, Texts{"fp16"});
  // fp16_full_eval alone switches training on, too; a missing gradient_clipping is not filled in.
  const TrainingConfig eval =
      Interpret(with("fp16_full_eval: true\nmax_grad_norm: 0\n", "fp16: {enabled: auto}, "));
  EXPECT_EQ(eval.formats, Texts{"fp16"});
  EXPECT_EQ(eval.clipping.max_norm, 1.0);
  ExpectConfigError("per_device_train_batch_size: 4\nfp16: true\ndeepspeed: {fp16: {}}\n",
                    "f:3: Please specify the ZeRO optimization config in the DeepSpeed config, "
                    "expected zero_optimization, perhaps with stage 0");
}

// The plugin writes DeepSpeed's file: ZeRO 2 unless told otherwise, gradient_clipping "auto".
TEST(ConfigAccelerate, ItsPluginIsDeepSpeed) {
  const std::string type = "distributed_type: DEEPSPEED\nmixed_precision: fp16\n";
  const std::string scaler = "init_scale=2^16 scale_window=1000 min_scale=1";
  ExpectMeaning(type, {"Accelerate with DeepSpeed",
                       {"fp16"},
                       "deepspeed " + scaler + " delayed_shift=2 consecutive_hysteresis=false"});
  const TrainingConfig plain =
      Interpret(type +
                "deepspeed_config: {zero_stage: 0, gradient_clipping: 0.5, "
                "gradient_accumulation_steps: 4}\n");
  EXPECT_EQ(PolicyOf(plain), "deepspeed-fp16-optimizer " + scaler);
  EXPECT_EQ(plain.clipping.max_norm, 0.5);
  EXPECT_EQ(plain.grad_accum_steps, 4);
  EXPECT_EQ(Interpret(type).clipping.max_norm, 1.0);
  // The plugin drops 0, and DeepSpeed's default clips; numbers in quotes are converted.
  EXPECT_EQ(Interpret(type + "deepspeed_config: {gradient_clipping: 0}\n").clipping.max_norm, 1.0);
  EXPECT_EQ(
      Interpret(type + "deepspeed_config: {gradient_accumulation_steps: '4'}\n").grad_accum_steps,
      4);
  ExpectConfigError(
      type + "deepspeed_config: {deepspeed_config_file: ds.json}\n",
      "f:2: mixed_precision: Accelerate refuses it together with deepspeed_config_file, "
      "expected its value in the DeepSpeed file alone");
}

TEST(ConfigMegatron, ArgumentsAreTheScalers) {
  const std::string arguments =
      "MODEL_ARGS:\n  --train-iters: 50\n  --fp16: true\n  --initial-loss-scale: 4096\n"
      "  --min-loss-scale: 2\n  --loss-scale-window: 8\n  --hysteresis: 3\n";
  ExpectMeaning(arguments, {"Megatron-LM",
                            {"fp16"},
                            "megatron initial_scale=4096 min_scale=2 growth_interval=8 "
                            "hysteresis=3"});
  EXPECT_EQ(Interpret(arguments).clipping.max_norm, 1.0);
  EXPECT_FALSE(Interpret(arguments + "  --clip-grad: 0\n").clipping.enabled());
  ExpectMeaning("MODEL_ARGS: {--lr: 1, --bf16: true}\n", {"Megatron-LM", {"bf16"}, kNothing});
  ExpectMeaning("MODEL_ARGS: {--lr: 1}\n", {"Megatron-LM", {}, kNothing});
  ExpectConfigError("MODEL_ARGS: {--lr: 1, --bf16: true, --fp16: true}\n",
                    "f:1: bf16: both fp16 and bf16 are on, expected at most one, as the original "
                    "does");
}

// ConstantGradScaler skips the step of an overflow.
TEST(ConfigMegatron, AConstantScaleSkipsAndStays) {
  const TrainingConfig config =
      Interpret("MODEL_ARGS: {--lr: 1, --bf16: true, --loss-scale: 1024}\n");
  EXPECT_EQ(config.formats, Texts{"bf16"});
  const ScalerRun run = RunConfig(config, 4000, {1, 2, 3, 4});
  EXPECT_EQ(PathOf(run), "1024.000000, 1024.000000 x4000");
  EXPECT_EQ(run.skipped, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(ConfigFairseq, TheWindowFollowsFromRanksAndUpdateFrequency) {
  const std::string common = "common: {fp16: true}\n";
  ExpectMeaning(common, {"fairseq", {"fp16"}, "fairseq init_scale=128 scale_window=16384"});
  EXPECT_TRUE(HasNote(Interpret(common), "here of one rank"));
  const std::string ranks = "distributed_training: {distributed_world_size: 24}\n";
  const TrainingConfig config =
      Interpret(common + ranks + "optimization: {update_freq: [4], clip_norm: 0.1}\n");
  EXPECT_EQ(PolicyOf(config), "fairseq init_scale=128 scale_window=170");  // int(16384 / 24 / 4)
  EXPECT_EQ(config.grad_accum_steps, 4);
  EXPECT_EQ(config.clipping.max_norm, 0.1);
  ExpectConfigError(
      common + "optimization: {update_freq: [1, 2]}\n",
      "f:2: optimization.update_freq: a schedule of several frequencies is not supported, "
      "expected one, or --policy fairseq --set scale_window=N");
}

TEST(ConfigFairseq, KeysAreTheScalers) {
  ExpectMeaning(
      "fairseq:\n  common: {fp16: true, fp16_init_scale: 4, fp16_scale_window: 128, "
      "fp16_scale_tolerance: 0.1, threshold_loss_scale: 1, min_loss_scale: 1e-6}\n",
      {"fairseq",
       {"fp16"},
       "fairseq init_scale=4 scale_window=128 tolerance=0.1 threshold=1 "
       "min_loss_scale=1e-6"});
  ExpectMeaning("common: {memory_efficient_fp16: true, fp16_scale_window: 8}\n",
                {"fairseq", {"fp16"}, "fairseq init_scale=128 scale_window=8"});
  ExpectMeaning("common: {bf16: true}\n", {"fairseq", {"bf16"}, kNothing});
  ExpectMeaning("common: {fp16: false}\n", {"fairseq", {}, kNothing});
}

TEST(ConfigHuggingFace, SwitchesAndDefaults) {
  const std::string arguments = "per_device_train_batch_size: 1\n";
  const std::string kind = "Hugging Face TrainingArguments";
  ExpectMeaning(arguments + "fp16: true\n", {kind, {"fp16"}, "torch"});
  ExpectMeaning(arguments + "bf16: true\n", {kind, {"bf16"}, kNothing});
  ExpectMeaning(arguments + "pure_bf16: true\n", {kind, {"bf16"}, kNothing});
  ExpectMeaning(arguments + "fp16: 1\nbf16: 0\n", {kind, {"fp16"}, "torch"});
  ExpectMeaning(arguments + "fp16: false\nbf16: false\n", {kind, {}, kNothing});
  ExpectMeaning(arguments + "torch_dtype: bfloat16\n", {kind, {"bf16"}, kNothing});
  ExpectMeaning(arguments + "fp16: true\nhalf_precision_backend: apex\nfp16_opt_level: O2\n",
                {kind, {"fp16"}, "apex"});
  EXPECT_EQ(Interpret(arguments + "fp16: true\n").clipping.max_norm, 1.0);
  EXPECT_FALSE(Interpret(arguments + "fp16: true\nmax_grad_norm: 0\n").clipping.enabled());
  EXPECT_FALSE(Interpret(arguments + "fp16: true\nmax_grad_norm: -1\n").clipping.enabled());
  EXPECT_EQ(Interpret(arguments + "fp16: true\ngradient_accumulation_steps: 8\n").grad_accum_steps,
            8);
}

// TRL's trainers have another default than transformers'.
TEST(ConfigHuggingFace, WithoutASwitchItIsUndecided) {
  ExpectConfigError("per_device_train_batch_size: 1\n",
                    "f:1: neither fp16 nor bf16 is given: transformers' Trainer computes in "
                    "float32 then, TRL's trainers since 0.20 in bf16, expected fp16 or bf16, or "
                    "--policy static --format bf16");
}

TEST(ConfigHuggingFace, FillsInDeepSpeedsAutoValues) {
  const std::string arguments =
      "per_device_train_batch_size: 1\nfp16: true\nmax_grad_norm: 0.25\n"
      "gradient_accumulation_steps: 2\ndeepspeed:\n";
  const TrainingConfig config = Interpret(
      arguments +
      "  gradient_clipping: auto\n  gradient_accumulation_steps: auto\n"
      "  fp16: {enabled: auto, initial_scale_power: 10}\n  zero_optimization: {stage: 2}\n");
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(config),
            "deepspeed init_scale=2^10 scale_window=1000 min_scale=1 delayed_shift=2 "
            "consecutive_hysteresis=false");
  EXPECT_EQ(config.clipping.max_norm, 0.25);
  EXPECT_EQ(config.grad_accum_steps, 2);
  EXPECT_EQ(Interpret(arguments + "  zero_optimization: {stage: 3}\n").formats, Texts{"fp16"});
}

TEST(ConfigLightning, PrecisionChoosesTheScaler) {
  const auto trainer = [](const std::string& precision) {
    return "trainer: {max_steps: 10, precision: " + precision + "}\n";
  };
  const std::string kind = "PyTorch Lightning";
  for (const char* precision : {"16", "'16'", "16-mixed"}) {
    ExpectMeaning(trainer(precision), {kind, {"fp16"}, "torch"});
  }
  ExpectMeaning(trainer("16-true"), {kind, {"fp16"}, kNothing});
  ExpectMeaning(trainer("bf16-mixed"), {kind, {"bf16"}, kNothing});
  ExpectMeaning(trainer("32"), {kind, {}, kNothing});
  ExpectMeaning("trainer: {max_epochs: 1}\n", {kind, {}, kNothing});
  ExpectMeaning("trainer: {max_steps: 1, precision: 16, amp_backend: apex, amp_level: O1}\n",
                {kind, {"fp16"}, "apex"});
  const std::string clipped = "trainer: {max_steps: 1, precision: 16, gradient_clip_val: 0.5";
  EXPECT_EQ(Interpret(clipped + "}\n").clipping.max_norm, 0.5);
  const Clipping value = Interpret(clipped + ", gradient_clip_algorithm: Value}\n").clipping;
  EXPECT_EQ(value.max_value, 0.5);
  EXPECT_FALSE(value.max_norm);
}

// Micro-steps change no scale; a limit that Hydra puts in is not guessed.
TEST(ConfigLightning, ValuesThatHydraPutsInAreNotGuessed) {
  const std::string trainer = "trainer:\n  max_epochs: 2\n  precision: 16\n";
  const TrainingConfig config =
      Interpret(trainer + "  accumulate_grad_batches: ${div_up:${a}, 2}\n");
  EXPECT_EQ(PolicyOf(config), "torch");
  EXPECT_TRUE(HasNote(config, "accumulate_grad_batches depends on other keys"));
  ExpectConfigError(trainer + "  gradient_clip_val: ${a}\n",
                    "f:4: trainer.gradient_clip_val: depends on other keys, which Hydra puts in, "
                    "expected the config.yaml that it writes next to a run, got '${a}'");
}

TEST(ConfigLightning, NemosMegatronHasItsOwnDefaults) {
  const std::string trainer = "trainer: {max_steps: 1, precision: 16}\nexp_manager: {a: 1}\n";
  ExpectMeaning(trainer, {"NeMo", {"fp16"}, "torch"});
  ExpectMeaning(trainer + "model: {megatron_amp_O2: true}\n",
                {"NeMo with Megatron",
                 {"fp16"},
                 "apex-hysteresis init_scale=2^32 "
                 "growth_interval=1000 hysteresis=2"});
  ExpectMeaning(trainer +
                    "model: {native_amp_init_scale: 65536, native_amp_growth_interval: 9, "
                    "hysteresis: 1}\n",
                {"NeMo with Megatron",
                 {"fp16"},
                 "apex-hysteresis init_scale=65536 "
                 "growth_interval=9 hysteresis=1"});
}

}  // namespace
}  // namespace dlsim::sim
