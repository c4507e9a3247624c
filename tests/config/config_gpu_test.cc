// SPDX-License-Identifier: Apache-2.0
// The configurations of torch and Apex, and dlsim's own.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

TEST(TorchConfig, ReadsKeywordArguments) {
  const TrainingConfig config = ReadExpecting(
      "torch_scaler.toml",
      {.kind = "torch GradScaler",
       .formats = {"fp16"},
       .policy = "torch init_scale=8192 growth_factor=1.5 backoff_factor=0.25 growth_interval=100 "
                 "enabled=true"});
  EXPECT_EQ(config.clipping.max_norm, 0.5);
  EXPECT_EQ(config.grad_accum_steps, 16);
  EXPECT_EQ(PathOf(RunConfig(config, 2, {0})), "8192.000000, 2048.000000 x2");
}

TEST(TorchConfig, TheTableMayBeNestedOrOneKey) {
  for (const std::string text :
       {R"({"GradScaler": {"init_scale": 8}})", R"({"torch.amp.GradScaler": {"init_scale": 8}})",
        R"({"torch": {"cuda": {"amp": {"GradScaler": {"init_scale": 8}}}}})",
        R"({"torch": {"amp.GradScaler": {"init_scale": 8}}})"}) {
    EXPECT_EQ(PolicyOf(Interpret(text)), "torch init_scale=8") << text;
  }
  EXPECT_EQ(PolicyOf(Interpret("[GradScaler]\n")), "torch");
}

TEST(TorchConfig, BadValuesAreRefused) {
  ExpectConfigError("[GradScaler]\ngrowth_interval = 0\n",
                    "f:2: GradScaler.growth_interval: too small, expected an integer of 1 or more, "
                    "got 0");
  ExpectConfigError("[GradScaler]\ninit_scale = -1.0\n",
                    "f:2: GradScaler.init_scale: out of range, expected a number above 0, got -1");
  ExpectConfigError("[GradScaler]\ninit_scale = inf\n",
                    "f:2: GradScaler.init_scale: not a number, expected a number such as 2^15, "
                    "2e15 or 0x1.8p+3, got 'inf'");
  ExpectConfigError("[GradScaler]\ngrowth_intervall = 5\n",
                    "f:2: GradScaler.growth_intervall: unknown key (did you mean "
                    "'growth_interval'?), expected one of device, init_scale, growth_factor, "
                    "backoff_factor, growth_interval, enabled");
  ExpectConfigError("max_norm = 1\nclip_value = 1\n[GradScaler]\n",
                    "f:2: clip_value: clips a second time, expected max_norm or clip_value");
  ExpectConfigError(
      "dtype = 'int8'\n[GradScaler]\n",
      "f:1: dtype: unknown format, expected a name such as float16 or bfloat16, got 'int8'");
}

TEST(ApexConfig, ReadsArgumentsOfInitialize) {
  ReadExpecting("apex.toml", {.kind = "Apex amp",
                              .formats = {"fp16"},
                              .policy = "apex min_loss_scale=128 max_loss_scale=65536"});
}

TEST(ApexConfig, OptLevelsHaveTheirOwnScale) {
  const auto level = [](const std::string& name) {
    return Interpret("[apex.amp.initialize]\nopt_level = '" + name + "'\n");
  };
  EXPECT_EQ(PolicyOf(level("O0")), "static loss_scale=1");
  EXPECT_EQ(level("O0").formats, Texts{});
  EXPECT_EQ(PolicyOf(level("O1")), "apex");
  EXPECT_EQ(PolicyOf(level("O2")), "apex");
  EXPECT_EQ(PolicyOf(level("O3")), "static loss_scale=1");
  EXPECT_EQ(PolicyOf(Interpret("[apex.amp]\nloss_scale = 128.0\n")), "static loss_scale=128");
  EXPECT_EQ(PolicyOf(Interpret("[apex.amp]\nenabled = false\n")), "static loss_scale=1");
  ExpectConfigError("[apex.amp]\nopt_level = 'O4'\n",
                    "f:2: apex.amp.opt_level: unknown name (did you mean 'O0'?), expected one of "
                    "O0, O1, O2, O3, got 'O4'");
  ExpectConfigError("[apex.amp]\nmin_loss_scale = 1e9\n",
                    "f:2: apex.amp.min_loss_scale: above max_loss_scale, expected at most "
                    "16777216.0, got 1000000000");
  ExpectConfigError("[apex.amp]\nloss_scale = 'static'\n",
                    "f:2: apex.amp.loss_scale: wrong value, expected a number or 'dynamic', got "
                    "'static'");
}

TEST(DlsimConfig, ReadsOptionsUnderTheirOwnNames) {
  const TrainingConfig config = ReadTrainingConfig(kConfigs + "dlsim.toml", {});
  EXPECT_EQ(config.kind, "dlsim");
  EXPECT_EQ(config.formats, (Texts{"fp16", "cb16"}));
  ASSERT_EQ(config.policies.size(), 2u);
  EXPECT_EQ(config.policies[0].name, "torch");
  EXPECT_EQ(config.policies[0].settings, Texts{"init_scale=2^12"});
  EXPECT_EQ(config.policies[1].name, "cerebras-2.10");
  EXPECT_EQ(config.policies[1].settings, (Texts{"init_scale=256", "steps_per_increase=500"}));
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_EQ(config.accumulate_steps, 2);
  EXPECT_EQ(config.finite_test, FiniteTest::kGlobalNorm);
}

TEST(DlsimConfig, BadValuesAreRefused) {
  ExpectConfigError(
      "policy = 'torch'\n[parameters]\ngrowth_intervall = 5\n",
      "f:3: parameters.growth_intervall: unknown parameter (did you mean 'growth_interval'?), "
      "expected one of init_scale, growth_factor, backoff_factor, "
      "growth_interval, enabled");
  ExpectConfigError("policy = 'torch'\n[parameters.static]\nloss_scale = 5\n",
                    "f:2: parameters.static: no policy of this file");
  ExpectConfigError("[parameters]\nloss_scale = 5\n",
                    "f:1: parameters: without a policy, expected policy = NAME");
  ExpectConfigError(
      "format = 'fp16'\nfromat = 1\n",
      "f:2: fromat: unknown key (did you mean 'format'?), expected one of format, policy, "
      "parameters, max-gradient-norm, max-gradient-value, grad-accum-steps, "
      "finite-test");
  ExpectConfigError("format = [1]\n",
                    "f:1: format: wrong type, expected a name or a list of names, got 1");
  ExpectConfigError(
      "policy = 'torhc'\n",
      "f:1: policy: policy: unknown name (did you mean 'torch'?), expected one of " +
          [] {
            std::string names;
            for (const PolicyInfo& policy : Policies()) {
              names += (names.empty() ? "" : ", ") + std::string(policy.name);
            }
            return names;
          }() +
          ", got 'torhc'");
}

TEST(ConfigKind, IsFoundByContentUnlessNamed) {
  ExpectConfigError(
      "a: 1\n",
      "f:1: not a known training configuration, expected the keys of one of "
      "verl, accelerate, megatron, fairseq, huggingface, lightning, cerebras, deepspeed, "
      "torchtitan, torch, apex, cerebras-tf, cerebras-old, dlsim (or name "
      "it by --config-kind), got a");
  const std::string both = R"({"fp16": {"enabled": true}, "GradScaler": {}})";
  EXPECT_EQ(Interpret(both).kind, "DeepSpeed");
  EXPECT_EQ(Interpret(both, {.backend = std::nullopt, .kind = "torch"}).kind, "torch GradScaler");
  ExpectConfigError(both, "f: trainer: no table init, expected trainer.init",
                    {.backend = std::nullopt, .kind = "cerebras"});
  for (const std::string_view kind : ConfigKinds()) {
    if (kind == "dlsim" || kind == "deepspeed") continue;  // they need no key
    EXPECT_THROW(Interpret("{\"a\": 1}", {.backend = std::nullopt, .kind = std::string(kind)}),
                 Error)
        << kind;
  }
  const TrainingConfig torch = Interpret(both, {.backend = Backend::kGpu, .kind = "torch"});
  EXPECT_TRUE(HasNote(torch, "--backend has no effect"));
}

TEST(ConfigKind, FilesThatMeanTheSameGiveTheSamePath) {
  const ConfigOptions on_gpu = {.backend = Backend::kGpu, .kind = ""};
  const TrainingConfig zoo = ReadTrainingConfig(kConfigs + "same_path.yaml", on_gpu);
  const TrainingConfig torch = ReadTrainingConfig(kConfigs + "same_path.toml", {});
  const std::vector<int64_t> overflows = {0, 3, 4, 12, 20, 21, 22, 60};
  const std::string path = PathOf(RunConfig(torch, 100, overflows));
  EXPECT_EQ(path.substr(0, 52), "4096.000000, 2048.000000 x3, 1024.000000 x1, 512.000");
  const std::string file = kConfigs + "same_path.json";
  const ConfigOptions old = {
      .backend = std::nullopt, .kind = "", .version = StackVersion{0, 17, 0}};
  const TrainingConfig deepspeed = ReadTrainingConfig(file, old);
  EXPECT_EQ(deepspeed.policies.at(0).name, "deepspeed-0.16");
  // Since 0.17.1 its first growth comes a step later.
  const TrainingConfig newest = ReadTrainingConfig(file, {});
  EXPECT_EQ(newest.policies.at(0).name, "deepspeed");
  EXPECT_NE(PathOf(RunConfig(newest, 100, overflows)), path);
  for (const TrainingConfig& other : {zoo, deepspeed}) {
    EXPECT_EQ(PathOf(RunConfig(other, 100, overflows)), path) << other.kind;
    EXPECT_EQ(other.formats, torch.formats) << other.kind;
    EXPECT_EQ(other.clipping.max_norm, torch.clipping.max_norm) << other.kind;
    EXPECT_EQ(other.grad_accum_steps, torch.grad_accum_steps) << other.kind;
  }
}

TEST(ConfigKind, SettingsAreThoseThatThePolicyHas) {
  const ConfigOptions tf = {.backend = std::nullopt, .kind = "cerebras-tf"};
  const std::string_view native =
      "optimizer: {loss_scaling_factor: tf_dynamic, initial_loss_scale: 8, steps_per_increase: 3}";
  EXPECT_EQ(RunConfig(Interpret(native, tf), 1, {}).scale_init, 8);
  EXPECT_EQ(RunConfig(ReadTrainingConfig(kConfigs + "apex.toml", {}), 1, {}).scale_init, 65536);
  EXPECT_EQ(RunConfig(ReadTrainingConfig(kConfigs + "deepspeed_zero3.json", {}), 1, {}).scale_init,
            4096);
  EXPECT_EQ(RunConfig(Interpret(R"({"fp16": {"enabled": true}})"), 1, {}).scale_init, 65536);
}

}  // namespace
}  // namespace dlsim::sim
