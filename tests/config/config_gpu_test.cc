// SPDX-License-Identifier: Apache-2.0
// The configurations of DeepSpeed, torch and Apex, and dlsim's own.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// A DeepSpeed file with these members of fp16 and, after it, of the file.
std::string DeepSpeed(const std::string& fp16, const std::string& rest = "") {
  return "{\"fp16\": {" + fp16 + "}" + (rest.empty() ? "" : ", " + rest) + "}";
}

constexpr char kZero[] = R"("zero_optimization": {"stage": 2})";

TEST(DeepSpeedConfig, ReadsAFileOfHuggingFacesTrainer) {
  const TrainingConfig config = ReadExpecting(
      "deepspeed_zero3.json",
      {.kind = "DeepSpeed",
       .formats = {"fp16"},
       .policy = "deepspeed init_scale=2^12 scale_window=500 min_scale=0.5 delayed_shift=3 "
                 "consecutive_hysteresis=false"});
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_EQ(config.clipping.rule, ClipRule::kTorch);
  EXPECT_EQ(config.grad_accum_steps, 8);
  EXPECT_TRUE(HasNote(config, "fp16.enabled is auto: read as true"));
  EXPECT_TRUE(HasNote(config, "bf16.enabled is auto: read as false"));
  EXPECT_TRUE(HasNote(config, "gradient_clipping is auto: read as 1.0"));
}

TEST(DeepSpeedConfig, DefaultsAreThoseOfItsConfiguration) {
  EXPECT_EQ(PolicyOf(Interpret(DeepSpeed(R"("enabled": true)", kZero))),
            "deepspeed init_scale=2^16 scale_window=1000 min_scale=1 delayed_shift=2 "
            "consecutive_hysteresis=false");
  EXPECT_FALSE(Interpret(DeepSpeed(R"("enabled": true)")).clipping.enabled());
}

TEST(DeepSpeedConfig, WithoutZeroAnotherOptimizerScales) {
  for (const std::string zero : {"", R"("zero_optimization": {"stage": 0})",
                                 R"("zero_optimization": {})", R"("zero_optimization": false)"}) {
    const TrainingConfig config =
        Interpret(DeepSpeed(R"("enabled": true, "hysteresis": 4, "loss_scale_window": 3)", zero));
    EXPECT_EQ(PolicyOf(config),
              "deepspeed-fp16-optimizer init_scale=2^16 scale_window=3 min_scale=1");
    EXPECT_TRUE(HasNote(config, "knows no hysteresis"));
  }
  EXPECT_EQ(Interpret(DeepSpeed(R"("enabled": true)", R"("zero_optimization": true)"))
                .policies.at(0)
                .name,
            "deepspeed");
}

TEST(DeepSpeedConfig, AStaticScaleBelongsToTheOptimizerThatSkips) {
  const std::string fp16 = R"("enabled": true, "loss_scale": 128.0)";
  EXPECT_EQ(PolicyOf(Interpret(DeepSpeed(fp16, kZero))), "deepspeed loss_scale=128.0");
  EXPECT_EQ(PolicyOf(Interpret(DeepSpeed(fp16))), "deepspeed-fp16-optimizer loss_scale=128.0");
}

TEST(DeepSpeedConfig, Bf16AndFloat32DoNotScale) {
  const TrainingConfig bf16 =
      Interpret(DeepSpeed(R"("enabled": "auto")", R"("bf16": {"enabled": true})"));
  EXPECT_EQ(bf16.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(bf16), "static loss_scale=1");
  EXPECT_TRUE(HasNote(bf16, "fp16.enabled is auto: read as false"));
  const TrainingConfig old = Interpret(R"({"bfloat16": {"enabled": true}})");
  EXPECT_EQ(old.formats, Texts{"bf16"});
  const TrainingConfig none = Interpret(DeepSpeed(R"("enabled": false)"));
  EXPECT_EQ(none.formats, Texts{});
  EXPECT_TRUE(HasNote(none, "computes in float32"));
  ExpectConfigError(DeepSpeed(R"("enabled": true)", R"("bf16": {"enabled": true})"),
                    "f: bf16.enabled: bfloat16 and fp16 modes cannot be simultaneously enabled");
}

TEST(DeepSpeedConfig, HysteresisZeroIsTaken) {
  const TrainingConfig config = Interpret(DeepSpeed(R"("enabled": true, "hysteresis": 0)", kZero));
  EXPECT_EQ(PolicyOf(config),
            "deepspeed init_scale=2^16 scale_window=1000 min_scale=1 delayed_shift=0 "
            "consecutive_hysteresis=false");
}

TEST(DeepSpeedConfig, BadValuesAreRefused) {
  const auto refuse = [](const std::string& member, const std::string& line) {
    ExpectConfigError(DeepSpeed("\"enabled\": true, " + member, kZero), "f: fp16." + line);
  };
  refuse(R"("loss_scale_window": 0)",
         "loss_scale_window: too small, expected an integer of 1 or more, got 0");
  refuse(R"("hysteresis": -1)", "hysteresis: too small, expected an integer of 0 or more, got -1");
  refuse(R"("min_loss_scale": -1.5)",
         "min_loss_scale: negative number, expected 0 or more, got -1.5");
  refuse(R"("initial_scale_power": 2000)",
         "initial_scale_power: too large, expected an integer of at most 1023, got 2000");
  refuse(R"("loss_scale": "dynamic")", "loss_scale: wrong type, expected a number, got 'dynamic'");
  refuse(R"("hysteresis": true)", "hysteresis: wrong type, expected an integer, got true");
  refuse(R"("loss_scale_windw": 5)",
         "loss_scale_windw: unknown key, expected one of enabled, auto_cast, loss_scale, "
         "initial_scale_power, loss_scale_window, hysteresis, consecutive_hysteresis, "
         "min_loss_scale, fp16_master_weights_and_grads (did you mean 'loss_scale_window'?)");
  ExpectConfigError(R"({"fp16": 1})", "f: fp16: wrong type, expected keys with values, got 1");
  ExpectConfigError(R"({"fp16": {}, "gradient_clipping": -1})",
                    "f: gradient_clipping: negative number, expected 0 or more, got -1");
  ExpectConfigError(R"({"zero_optimization": {"stage": 4}, "fp16": {}})",
                    "f: zero_optimization.stage: too large, expected an integer of at most 3, got "
                    "4");
}

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
                    "f:2: GradScaler.growth_intervall: unknown key, expected one of device, "
                    "init_scale, growth_factor, backoff_factor, growth_interval, enabled (did you "
                    "mean 'growth_interval'?)");
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
                    "f:2: apex.amp.opt_level: unknown name, expected one of O0, O1, O2, O3 (did "
                    "you mean 'O0'?), got 'O4'");
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
  ExpectConfigError("policy = 'torch'\n[parameters]\ngrowth_intervall = 5\n",
                    "f:3: parameters.growth_intervall: unknown parameter, expected one of "
                    "init_scale, growth_factor, backoff_factor, growth_interval, enabled (did you "
                    "mean 'growth_interval'?)");
  ExpectConfigError("policy = 'torch'\n[parameters.static]\nloss_scale = 5\n",
                    "f:2: parameters.static: no policy of this file");
  ExpectConfigError("[parameters]\nloss_scale = 5\n",
                    "f:1: parameters: without a policy, expected policy = NAME");
  ExpectConfigError("format = 'fp16'\nfromat = 1\n",
                    "f:2: fromat: unknown key, expected one of format, policy, parameters, "
                    "max-gradient-norm, max-gradient-value, grad-accum-steps, finite-test (did you "
                    "mean 'format'?)");
  ExpectConfigError("format = [1]\n",
                    "f:1: format: wrong type, expected a name or a list of names, got 1");
  ExpectConfigError(
      "policy = 'torhc'\n", "f:1: policy: policy: unknown name, expected one of " + [] {
        std::string names;
        for (const PolicyInfo& policy : Policies()) {
          names += (names.empty() ? "" : ", ") + std::string(policy.name);
        }
        return names;
      }() + " (did you mean 'torch'?), got 'torhc'");
}

TEST(ConfigKind, IsFoundByContentUnlessNamed) {
  ExpectConfigError("a: 1\n",
                    "f:1: not a known training configuration, expected the keys of one of "
                    "cerebras, deepspeed, torch, apex, cerebras-tf, cerebras-old, dlsim (or name "
                    "it by --config-kind)");
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
  const TrainingConfig deepspeed = ReadTrainingConfig(kConfigs + "same_path.json", {});
  EXPECT_EQ(deepspeed.policies.at(0).name, "deepspeed");
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
  EXPECT_EQ(RunConfig(Interpret(DeepSpeed(R"("enabled": true)")), 1, {}).scale_init, 65536);
}

}  // namespace
}  // namespace dlsim::sim
