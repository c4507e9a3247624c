// SPDX-License-Identifier: Apache-2.0
// The formats of weights, states and gradients that the stacks' configurations ask for.
#include "sim/config/update_formats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// "weights master first second gradients reduce", with "?" for what the file does not say.
std::string FormatsOf(std::string_view text, const ConfigOptions& options = {}) {
  const UpdateFormats formats = Interpret(text, options).updates.formats;
  std::string line;
  for (const auto& name : {formats.weights, formats.master, formats.first, formats.second,
                           formats.gradients, formats.reduce}) {
    line += (line.empty() ? "" : " ") + name.value_or("?");
  }
  return line;
}

constexpr std::string_view kSilent = "? ? ? ? ? ?";

std::string DeepSpeedFile(const std::string& types, const std::string& rest = "") {
  return "{\"zero_optimization\": {\"stage\": 2}, \"optimizer\": {\"type\": \"AdamW\"" + rest +
         "}, " + types + "}";
}

TEST(UpdateFormatsDeepSpeed, HoldsFloat32CopiesByDefault) {
  EXPECT_EQ(FormatsOf(DeepSpeedFile("\"bf16\": {\"enabled\": true}")),
            "bf16 fp32 fp32 fp32 bf16 bf16");
  EXPECT_EQ(FormatsOf(DeepSpeedFile("\"fp16\": {\"enabled\": true}")),
            "fp16 fp32 fp32 fp32 fp16 fp16");
  const std::string master =
      "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true";
  EXPECT_EQ(FormatsOf(DeepSpeedFile(master + ", \"bf16_optimizer_states\": true}")),
            "bf16 bf16 bf16 bf16 bf16 bf16");
  // DeepSpeedCPUAdam, which keeps its states in float32.
  EXPECT_EQ(FormatsOf(DeepSpeedFile(master + "}")), "bf16 bf16 fp32 fp32 bf16 bf16");
  EXPECT_EQ(
      FormatsOf(DeepSpeedFile(master + "}", ", \"params\": {\"fp32_optimizer_states\": false}")),
      "bf16 bf16 bf16 bf16 bf16 bf16");
  EXPECT_EQ(FormatsOf(DeepSpeedFile(
                "\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}")),
            "fp16 fp16 fp32 fp32 fp16 fp16");
  const std::string text =
      "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": \"true\"}";
  EXPECT_EQ(FormatsOf(DeepSpeedFile(text)), "bf16 bf16 fp32 fp32 bf16 bf16");
}

TEST(UpdateFormatsDeepSpeed, TypesOfGradientsAndOfSums) {
  EXPECT_EQ(FormatsOf(DeepSpeedFile("\"bf16\": {\"enabled\": true}, \"communication_data_type\": "
                                    "\"fp32\", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}")),
            "bf16 fp32 fp32 fp32 fp32 fp32");
  EXPECT_EQ(
      FormatsOf(DeepSpeedFile("\"bf16\": {\"enabled\": true}, \"sequence_parallel_size\": 2")),
      "bf16 fp32 fp32 fp32 bf16 ?");
}

// "lr beta1 beta2 eps weight_decay", with "?" for what the file does not say.
std::string SettingsOf(std::string_view text) {
  const UpdateSettings settings = Interpret(text, {}).updates.settings;
  std::string line;
  for (const auto& value :
       {settings.lr, settings.beta1, settings.beta2, settings.eps, settings.weight_decay}) {
    line += (line.empty() ? "" : " ") + (value ? fmt::format("{}", *value) : "?");
  }
  return line;
}

std::string TrainerWithDeepSpeed(const std::string& params, const std::string& rest = "") {
  return R"({"per_device_train_batch_size": 1, "bf16": true, "learning_rate": 2e-5,
    "adam_beta2": 0.95, "deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {)" +
         params + "}}" + rest + "}}";
}

// Compared with transformers 5.24.0, integrations/deepspeed.py, trainer_config_process.
TEST(UpdateFormatsDeepSpeed, TheTrainersArgumentsTakeThePlaceOfAuto) {
  const std::string automatic =
      R"("lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto")";
  EXPECT_EQ(SettingsOf(TrainerWithDeepSpeed(automatic)), "2e-05 0.9 0.95 1e-08 0");
  EXPECT_EQ(SettingsOf(TrainerWithDeepSpeed(R"("lr": 1e-4, "betas": [0.8, 0.99])")),
            "0.0001 0.8 0.99 1e-08 0");
  const std::string warmup =
      R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}})";
  EXPECT_EQ(SettingsOf(TrainerWithDeepSpeed(automatic, warmup)), "2e-05 0.9 0.95 1e-08 0");
  const std::string other = R"(, "scheduler": {"type": "OneCycle", "params": {}})";
  EXPECT_EQ(SettingsOf(TrainerWithDeepSpeed(automatic, other)), "? 0.9 0.95 1e-08 0");
  // Without the trainer nothing says what "auto" is.
  EXPECT_EQ(SettingsOf(DeepSpeedFile("\"bf16\": {\"enabled\": true}",
                                     ", \"params\": {" + automatic + "}")),
            "? ? ? ? ?");
}

// DeepSpeed's engine, _configure_basic_optimizer: AdamW is what its name says; Adam decays as AdamW
// does unless adam_w_mode is false to Python.
TEST(UpdateFormatsDeepSpeed, AdamDecaysByItsMode) {
  const auto decoupled = [](const std::string& type, const std::string& params) {
    const std::string file =
        "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": "
        "true}, \"optimizer\": {\"type\": \"" +
        type + "\", \"params\": {\"lr\": 1e-4" + params + "}}}";
    return Interpret(file).updates.settings.decoupled;
  };
  EXPECT_TRUE(decoupled("Adam", ""));
  EXPECT_TRUE(decoupled("Adam", ", \"adam_w_mode\": true"));
  EXPECT_TRUE(decoupled("Adam", ", \"adam_w_mode\": 1"));
  EXPECT_TRUE(decoupled("Adam", ", \"torch_adam\": true"));
  for (const std::string value : {"false", "0", "null", "\"\""}) {
    EXPECT_FALSE(decoupled("Adam", ", \"adam_w_mode\": " + value)) << value;
    EXPECT_TRUE(decoupled("AdamW", ", \"adam_w_mode\": " + value)) << value;
  }
  EXPECT_FALSE(decoupled("Adam", ", \"torch_adam\": true, \"adam_w_mode\": false"));
  // PyTorch's class has its states in the type of what it updates.
  EXPECT_EQ(FormatsOf(DeepSpeedFile(
                "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}",
                ", \"params\": {\"torch_adam\": true}")),
            "bf16 bf16 bf16 bf16 bf16 bf16");
}

TEST(UpdateFormatsDeepSpeed, WhatTheFileDoesNotSayIsAbsent) {
  EXPECT_EQ(FormatsOf("{\"zero_optimization\": {\"stage\": 2}}"), kSilent);
  // The script's own optimizer.
  EXPECT_EQ(FormatsOf("{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}}"),
            "bf16 fp32 ? ? bf16 bf16");
  const std::string no_zero =
      "{\"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Adam\"}}";
  EXPECT_EQ(FormatsOf(no_zero), "bf16 fp32 fp32 fp32 bf16 bf16");
  EXPECT_EQ(FormatsOf(no_zero, {.backend = {}, .kind = "", .version = StackVersion{0, 18, 4}}),
            kSilent);
}

std::string Megatron(const std::string& options) {
  return "torchrun pretrain.py --num-layers 2 --hidden-size 8 --lr 1e-4 " + options + "\n";
}

TEST(UpdateFormatsMegatron, AreThoseOfItsArguments) {
  EXPECT_EQ(FormatsOf(Megatron("--bf16")), "bf16 fp32 fp32 fp32 fp32 fp32");
  EXPECT_EQ(FormatsOf(Megatron("--fp16")), "fp16 fp32 fp32 fp32 fp16 fp16");
  EXPECT_EQ(FormatsOf(Megatron("--fp16 --accumulate-allreduce-grads-in-fp32")),
            "fp16 fp32 fp32 fp32 fp32 fp32");
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --grad-reduce-in-bf16")), "bf16 fp32 fp32 fp32 bf16 bf16");
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 "
                               "--exp-avg-sq-dtype bf16 --main-grads-dtype bf16")),
            "bf16 fp32 bf16 bf16 bf16 bf16");
  // Without the switch the types have no effect.
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --exp-avg-dtype bf16")), "bf16 fp32 fp32 fp32 fp32 fp32");
}

TEST(UpdateFormatsMegatron, ScaledStatesAndOtherOptimizersStayOpen) {
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp8 "
                               "--exp-avg-sq-dtype fp16 --main-params-dtype fp16")),
            "bf16 ? ? ? fp32 fp32");
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --optimizer muon")), "bf16 fp32 ? ? fp32 fp32");
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --use-megatron-fsdp")), "bf16 fp32 fp32 fp32 ? ?");
}

// What only running a script would tell is no default.
TEST(UpdateFormatsMegatron, ABranchOfAScriptLeavesThemOpen) {
  EXPECT_EQ(FormatsOf(Megatron("--bf16 $1")), "bf16 ? ? ? ? ?");
  EXPECT_EQ(FormatsOf(Megatron("--bf16 --exp-avg-sq-dtype $TYPE --use-precision-aware-optimizer")),
            "bf16 fp32 fp32 ? fp32 fp32");
  EXPECT_EQ(FormatsOf("#!/bin/bash\nA=\"--num-layers 2 --hidden-size 8 --bf16\"\n"
                      "if [ $X ]; then\n  p.py $A --use-precision-aware-optimizer\nelse\n"
                      "  p.py $A\nfi\n"),
            "bf16 ? ? ? fp32 fp32");
}

TEST(UpdateFormatsOthers, OfFairseqLightningAndAccelerate) {
  const std::string fairseq = "fairseq-train d --arch a --criterion c --optimizer adam --lr 0.1 ";
  EXPECT_EQ(FormatsOf(fairseq + "--fp16"), "fp16 fp32 fp32 fp32 fp16 fp16");
  EXPECT_EQ(FormatsOf(fairseq + "--memory-efficient-fp16"), "fp16 none fp32 fp32 fp16 fp16");
  EXPECT_EQ(FormatsOf(fairseq + "--fp16 --fp16-adam-stats"), "fp16 fp32 ? ? fp16 fp16");
  EXPECT_EQ(FormatsOf(fairseq + "--bf16 --ddp-backend fully_sharded"), "? ? ? ? ? ?");
  const std::string lightning = "trainer: {max_steps: 1, precision: ";
  EXPECT_EQ(FormatsOf(lightning + "bf16-true}\n"), "bf16 none ? ? bf16 bf16");
  EXPECT_EQ(FormatsOf(lightning + "16-true}\n"), "fp16 none ? ? fp16 fp16");
  EXPECT_EQ(FormatsOf(lightning + "bf16-mixed}\n"), kSilent);
  const std::string accelerate = "mixed_precision: bf16\ndistributed_type: ";
  EXPECT_EQ(FormatsOf(accelerate + "FSDP\n"), "bf16 fp32 ? ? ? bf16");
  EXPECT_EQ(FormatsOf(accelerate + "MULTI_GPU\n"), kSilent);
}

TEST(UpdateFormatsHuggingFace, SayHowTheModelIsLoaded) {
  const std::string arguments = "per_device_train_batch_size: 1\nbf16: true\n";
  EXPECT_EQ(FormatsOf(arguments), kSilent);
  EXPECT_EQ(FormatsOf(arguments + "torch_dtype: bfloat16\n"), "bf16 ? ? ? ? ?");
  EXPECT_EQ(FormatsOf(arguments + "dtype: torch.float32\n"), "fp32 ? ? ? ? ?");
  EXPECT_EQ(FormatsOf(arguments + "torch_dtype: auto\n"), kSilent);
  EXPECT_EQ(FormatsOf(arguments + "torch_dtype: bfloat16\nuse_peft: true\n"), kSilent);
  // Accelerate gives FSDP float32 shards, whatever type was loaded, unless precision is not mixed.
  EXPECT_EQ(FormatsOf(arguments + "torch_dtype: bfloat16\nfsdp: full_shard\n"),
            "bf16 fp32 ? ? ? bf16");
  EXPECT_EQ(FormatsOf("per_device_train_batch_size: 1\ntorch_dtype: bfloat16\nfsdp: full_shard\n"),
            kSilent);
}

TEST(UpdateFormatsLightning, OfFsdp) {
  const auto of = [](const std::string& precision, const std::string& strategy) {
    return FormatsOf("trainer: {max_steps: 1, precision: " + precision + ", strategy: " + strategy +
                     "}\n");
  };
  EXPECT_EQ(of("bf16-mixed", "fsdp"), "bf16 fp32 ? ? ? bf16");
  EXPECT_EQ(of("bf16-true", "fsdp"), "bf16 none ? ? ? bf16");
  EXPECT_EQ(of("bf16-mixed", "ddp"), kSilent);
  const auto mixed = [&](const std::string& types) {
    return of("bf16-mixed",
              "{class_path: FSDPStrategy, init_args: {mixed_precision: {" + types + "}}}");
  };
  EXPECT_EQ(mixed("param_dtype: torch.bfloat16, reduce_dtype: torch.float32"),
            "bf16 fp32 ? ? ? fp32");
  EXPECT_EQ(mixed("class_path: MixedPrecision, init_args: {param_dtype: torch.float16}"),
            "fp16 fp32 ? ? ? fp16");
  EXPECT_EQ(mixed("param_dtype: 7"), "? fp32 ? ? ? ?");
}

TEST(UpdateFormatsVerl, OfFsdpAndMegatron) {
  const auto actor = [](const std::string& rest) {
    return "actor_rollout_ref:\n  actor: {" + rest + "}\n";
  };
  EXPECT_EQ(FormatsOf(actor("strategy: fsdp")), "bf16 fp32 fp32 fp32 ? fp32");
  EXPECT_EQ(FormatsOf(actor("fsdp_config: {model_dtype: bf16, mixed_precision: {reduce_dtype: "
                            "bf16}}")),
            "bf16 none bf16 bf16 ? bf16");
  EXPECT_EQ(FormatsOf(actor("fsdp_config: {model_dtype: bf16}, optim: {optimizer: AdamW8bit}")),
            "bf16 none ? ? ? fp32");
  EXPECT_EQ(SettingsOf(actor("optim: {lr: 1.0e-6, betas: [0.9, 0.99], weight_decay: 0.1}")),
            "1e-06 0.9 0.99 1e-08 0.1");
  EXPECT_EQ(SettingsOf(actor("optim: {lr: 1.0e-6, override_optimizer_config: {eps: 1.0e-6}}")),
            "? ? ? ? ?");
  // In float16, too, gradients are summed in float32.
  const std::string megatron = "strategy: megatron, megatron: {dtype: ";
  EXPECT_EQ(FormatsOf(actor(megatron + "float16}")), "fp16 fp32 fp32 fp32 fp32 fp32");
  EXPECT_EQ(FormatsOf(actor(megatron + "bfloat16}, optim: {use_precision_aware_optimizer: true, "
                                       "exp_avg_sq_dtype: bf16, main_grads_dtype: bf16}")),
            "bf16 fp32 fp32 bf16 bf16 bf16");
  EXPECT_EQ(SettingsOf(actor(megatron + "bfloat16}, optim: {lr: 1.0e-6, betas: [0.9, 0.95]}")),
            "1e-06 0.9 0.95 1e-08 0.01");
}

TEST(UpdateFormatsCerebras, WeightsAreStoredInFloat32) {
  const std::string trainer =
      "trainer: {init: {precision: {fp16_type: cbfloat16, loss_scaling_factor: dynamic, enabled: ";
  EXPECT_EQ(FormatsOf(trainer + "true}}}\n"), "cb16 fp32 fp32 fp32 ? ?");
  EXPECT_EQ(FormatsOf(trainer + "false}, backend: {backend_type: CPU}}}\n"), kSilent);
  const std::string old = "optimizer: {optimizer_type: AdamW}\nmodel: {mixed_precision: ";
  EXPECT_EQ(FormatsOf(old + "true}\n"), "fp16 fp32 fp32 fp32 ? ?");
  EXPECT_EQ(FormatsOf(old + "false}\n"), kSilent);
}

TEST(UpdateFormatsTorchtitan, AreThoseOfTheTable) {
  const std::string job = "[job]\ndump_folder = \"x\"\n[training]\nsteps = 5\n";
  EXPECT_EQ(FormatsOf(job), "bf16 fp32 fp32 fp32 fp32 fp32");
  EXPECT_EQ(FormatsOf(job + "dtype = \"bfloat16\"\n"), "bf16 none bf16 bf16 bf16 fp32");
  EXPECT_EQ(FormatsOf(job + "mixed_precision_param = \"float32\"\n"), kSilent);
  ExpectMeaning(job, {"torchtitan", {"bf16"}, kNothing});
  EXPECT_EQ(Interpret(job).clipping.max_norm, 1.0);
}

}  // namespace
}  // namespace dlsim::sim
