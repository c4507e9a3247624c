// SPDX-License-Identifier: Apache-2.0
// verl's configuration, and DeepSpeed files that other stacks' configurations name.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

std::string Actor(const std::string& lines) {
  return "actor_rollout_ref:\n  actor:\n" + lines + "trainer: {total_epochs: 1}\n";
}

const ConfigOptions kBefore08 = {.backend = {}, .kind = "", .version = StackVersion{0, 7, 0}};

// FSDPEngine: ShardedGradScaler(growth_interval=400) in float16, nothing else.
TEST(ConfigVerl, FsdpScalesByParamDtype) {
  const auto typed = [](const std::string& type) {
    return Actor("    strategy: fsdp2\n    fsdp_config: {mixed_precision: {param_dtype: " + type +
                 "}}\n");
  };
  for (const char* type : {"float16", "fp16", "16"}) {
    ExpectMeaning(typed(type), {"verl with FSDP", {"fp16"}, "torch growth_interval=400"});
  }
  ExpectMeaning(typed("bfloat16"), {"verl with FSDP", {"bf16"}, kNothing});
  ExpectMeaning(typed("fp32"), {"verl with FSDP", {}, kNothing});
  ExpectMeaning(Actor("    strategy: fsdp\n"), {"verl with FSDP", {"bf16"}, kNothing});
  ExpectConfigError(typed("fp8"),
                    "f:4: actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype: "
                    "unexpected precision, expected bfloat16, float16 or float32, got 'fp8'");
  const TrainingConfig config = Interpret(typed("float16"));
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_TRUE(HasNote(config, "the critic computes in bf16"));
  const ScalerRun run = RunConfig(config, 500, {0});
  EXPECT_EQ(PathOf(run), "65536.000000, 32768.000000 x400, 65536.000000 x100");
}

TEST(ConfigVerl, OtherKeysDecidedBefore08) {
  const std::string text =
      Actor("    fsdp_config: {dtype: float16}\n    grad_clip: 0.5\n    optim: {clip_grad: 0.3}\n");
  const TrainingConfig newest = Interpret(text);
  EXPECT_EQ(newest.formats, Texts{"bf16"});
  EXPECT_EQ(newest.clipping.max_norm, 0.3);
  EXPECT_TRUE(HasNote(newest, "dtype has no effect with FSDP since verl 0.8"));
  EXPECT_TRUE(HasNote(newest, "grad_clip has no effect since verl 0.8"));
  const TrainingConfig old = Interpret(text, kBefore08);
  EXPECT_EQ(old.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(old), "torch growth_interval=400");
  EXPECT_EQ(old.clipping.max_norm, 0.5);
  // A key that only those releases have tells them apart.
  const std::string legacy =
      "actor_rollout_ref: {actor: {fsdp_config: {dtype: float16}}}\n"
      "trainer: {use_legacy_worker_impl: ";
  EXPECT_EQ(Interpret(legacy + "auto}\n").formats, Texts{"fp16"});
  EXPECT_EQ(Interpret(legacy + "disable}\n").formats, Texts{"bf16"});
  const TrainingConfig fork = Interpret(Actor("    dtype: float16\n    grad_clip: 0.2\n"));
  EXPECT_EQ(PolicyOf(fork), "torch growth_interval=400");
  EXPECT_EQ(fork.clipping.max_norm, 0.2);
  EXPECT_TRUE(HasNote(fork, "actor.dtype decides"));
}

TEST(ConfigVerl, WhatIsNotSimulatedIsNoted) {
  const std::string mixed =
      "    fsdp_config: {dtype: float16, mixed_precision: {reduce_dtype: bf16}}\n";
  EXPECT_TRUE(HasNote(Interpret(Actor(mixed)),
                      "if gradients of several ranks are summed in actor_rollout_ref.actor."
                      "fsdp_config.mixed_precision.reduce_dtype bf16: each addition"));
  EXPECT_TRUE(
      HasNote(Interpret(Actor(mixed), kBefore08), "mixed_precision.param_dtype is not dtype"));
}

// init_megatron_optim_config: 32768 and 1, the rest is Megatron's own.
TEST(ConfigVerl, MegatronHasItsOwnScaler) {
  const std::string actor =
      "    strategy: megatron\n    megatron: {dtype: float16}\n    optim: {clip_grad: 0.3";
  const TrainingConfig config = Interpret(Actor(actor + "}\n"));
  EXPECT_EQ(config.kind, "verl with Megatron");
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(config), "megatron initial_scale=32768");
  EXPECT_EQ(config.clipping.max_norm, 0.3);
  ExpectMeaning(Actor(actor + ", override_optimizer_config: {initial_loss_scale: 8, "
                              "loss_scale_window: 5}}\n"),
                {"verl with Megatron", {"fp16"}, "megatron initial_scale=8 growth_interval=5"});
  ExpectMeaning(Actor("    strategy: megatron\n"), {"verl with Megatron", {"bf16"}, kNothing});
  ExpectConfigError(Actor("    strategy: megatron\n    megatron: {dtype: float32}\n"),
                    "f:4: actor_rollout_ref.actor.megatron.dtype: unknown name (did you mean "
                    "'float16'?), expected one of bfloat16, float16, got 'float32'");
}

// As the examples of the original start it.
TEST(ConfigVerl, OverridesOfACommandLine) {
  const std::string start = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae ";
  const TrainingConfig fsdp = Interpret(
      "#!/bin/bash\nDTYPE=float16\n" + start +
      "\\\n    data.train_files=$HOME/train.parquet \\\n    actor_rollout_ref.actor.strategy=fsdp2 "
      "\\\n    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=${DTYPE} \\\n"
      "    actor_rollout_ref.actor.optim.clip_grad=0.5 critic.strategy=$CRITIC "
      "trainer.n_gpus_per_node=8\n");
  EXPECT_EQ(fsdp.kind, "verl with FSDP");
  EXPECT_EQ(fsdp.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(fsdp), "torch growth_interval=400");
  EXPECT_EQ(fsdp.clipping.max_norm, 0.5);
  const std::string megatron = "actor_rollout_ref.actor.megatron.dtype=\"'float16'\" ";
  const std::string scale =
      "++actor_rollout_ref.actor.optim.override_optimizer_config.initial_loss_scale=8";
  for (const char* base :
       {"--config-path=config --config-name='ppo_megatron_trainer.yaml' ", "model_engine=megatron ",
        "actor_rollout_ref.actor.strategy=megatron "}) {
    const TrainingConfig config = Interpret(start + base + megatron + scale);
    EXPECT_EQ(config.kind, "verl with Megatron") << base;
    EXPECT_EQ(PolicyOf(config), "megatron initial_scale=8") << base;
    EXPECT_FALSE(HasNote(config, "is not read: where")) << base;
  }
  const TrainingConfig own = Interpret(start + "--config-name mine actor_rollout_ref.actor.n=1");
  EXPECT_EQ(own.formats, Texts{"bf16"});
  EXPECT_TRUE(HasNote(own, "the file of --config-name 'mine' is not read"));
}

TEST(ConfigVerl, WhatTheScriptDecidesIsRefused) {
  const std::string refused =
      "f:2: 'actor_rollout_ref.actor.fsdp_config.dtype' depends on how the script is run, expected "
      "a "
      "script without that choice, or the command line itself";
  const std::string dtype = "actor_rollout_ref.actor.fsdp_config.dtype=";
  ExpectConfigError("#!/bin/bash\npython3 -m verl.trainer.main_ppo " + dtype + "$1\n", refused);
  ExpectConfigError(
      "#!/bin/bash\nif true; then python3 -m verl.trainer.main_ppo " + dtype + "float16; fi\n",
      refused);
}

TEST(ConfigVerl, OverridesAreBounded) {
  const std::string start = "python3 x.py --fp16 --num-layers 2 --hidden-size 4 ";
  std::string deep = start, wide = start;
  for (int i = 0; i < 200'000; ++i) deep += "a.";
  EXPECT_EQ(PolicyOf(Interpret(deep + "b=1")), "megatron");
  for (int i = 0; i < 30'000; ++i) wide += "a.b" + std::to_string(i) + "=1 ";
  ExpectConfigError(wide,
                    "f:1: too many values (aliases count each time), expected at most 20000 in a "
                    "training configuration");
}

TEST(ConfigVerl, ACommandLineIsRecognizedByItsProgram) {
  const std::string ppo = "python3 -m verl.trainer.main_ppo data.train_files=a.parquet ";
  ExpectMeaning(ppo, {"verl with FSDP", {"bf16"}, kNothing});
  ExpectMeaning(ppo + "--config-name=ppo_megatron_trainer.yaml",
                {"verl with Megatron", {"bf16"}, kNothing});
  for (const char* engine : {"veomni", "torchtitan", "automodel"}) {
    ExpectConfigError(ppo + "model_engine=" + engine,
                      "f: verl with " + std::string(engine) +
                          " is not read, expected --policy static --format bf16 where it computes "
                          "in bfloat16");
  }
  EXPECT_THROW(Interpret(ppo + "actor_rollout_ref.actor.strategy=veomni"), Error);
  ExpectMeaning("python3 verl/trainer/main_ppo.py data.train_files=a",
                {"verl with FSDP", {"bf16"}, kNothing});
  const std::string sft = "torchrun -m verl.trainer.sft_trainer data.train_files=a.parquet ";
  const std::string_view kind = "verl's fine-tuning";
  ExpectMeaning(sft + "engine=fsdp optim.lr=1e-4", {kind, {"bf16"}, kNothing});
  ExpectMeaning(sft +
                    "engine.ulysses_sequence_parallel_size=2 engine=fsdp "
                    "+engine.mixed_precision.param_dtype=fp16",
                {kind, {"fp16"}, "torch growth_interval=400"});
  ExpectMeaning(sft + "engine=megatron engine.dtype=float16",
                {kind, {"fp16"}, "megatron initial_scale=32768"});
  EXPECT_EQ(Interpret(sft + "optim.clip_grad=0.3").clipping.max_norm, 0.3);
  EXPECT_THROW(Interpret(sft + "engine=veomni"), Error);
}

TEST(ConfigVerl, FineTuningByItsComposedFile) {
  ExpectMeaning("data: {train_files: a}\nmodel: {partial_pretrain: b}\noptim: {clip_grad: 2}\n",
                {"verl's fine-tuning", {"bf16"}, kNothing});
  ExpectMeaning(
      "data: {train_files: a}\nengine: {strategy: fsdp2, mixed_precision: "
      "{param_dtype: float16}}\n",
      {"verl's fine-tuning", {"fp16"}, "torch growth_interval=400"});
}

class ConfigDeepSpeedFile : public testing::Test {
 protected:
  TrainingConfig Read(const std::string& text) {
    return ReadTrainingConfig(dir_.Write("run.yaml", text), {});
  }

  TempDir dir_;
};

TEST_F(ConfigDeepSpeedFile, ATrainersPathIsReadFromItsFile) {
  dir_.Write("ds.json",
             R"({"fp16": {"enabled": "auto", "initial_scale_power": 4},
                 "zero_optimization": {"stage": 1}, "gradient_clipping": "auto"})");
  for (const char* stack : {"per_device_train_batch_size: 1\n",
                            "stage: sft\nfinetuning_type: lora\nmodel_name_or_path: m\n"}) {
    const TrainingConfig config =
        Read(std::string(stack) + "fp16: true\nmax_grad_norm: 0.5\ndeepspeed: ds.json\n");
    EXPECT_EQ(config.kind, "Hugging Face TrainingArguments");
    EXPECT_EQ(config.formats, Texts{"fp16"});
    EXPECT_EQ(config.policies.at(0).name, "deepspeed");
    EXPECT_EQ(config.policies.at(0).settings.at(0), "init_scale=2^4");
    EXPECT_EQ(config.clipping.max_norm, 0.5);
    EXPECT_TRUE(HasNote(config, "ds.json decides"));
  }
}

TEST_F(ConfigDeepSpeedFile, AcceleratesPathToo) {
  dir_.Write(
      "ds.json",
      R"({"bf16": {"enabled": true}, "fp16": {"enabled": "auto"}, "zero_optimization": {}})");
  const TrainingConfig config = Read(
      "distributed_type: DEEPSPEED\ncompute_environment: LOCAL_MACHINE\n"
      "deepspeed_config: {deepspeed_config_file: ds.json}\n");
  EXPECT_EQ(config.kind, "Accelerate with DeepSpeed");
  EXPECT_EQ(config.formats, Texts{"bf16"});
}

TEST_F(ConfigDeepSpeedFile, WhatIsNoSuchFileIsOneLine) {
  const std::string trainer = "per_device_train_batch_size: 1\ndeepspeed: ";
  const auto expect = [&](const std::string& text, const std::string& words) {
    try {
      Read(trainer + text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect("none.json\n",
         "run.yaml:2: deepspeed: no such DeepSpeed file, expected its path from this file or from "
         "the working directory, got 'none.json'");
  dir_.Write("other.json", R"({"a": 1})");
  expect("other.json\n", "other.json: not a configuration of DeepSpeed");
  expect("3\n", "deepspeed: DeepSpeed scales the loss of this run, expected the path of its file");
}

}  // namespace
}  // namespace dlsim::sim
