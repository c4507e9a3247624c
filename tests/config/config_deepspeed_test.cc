// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's configurations, as Hugging Face's trainer and GPT-NeoX have them too.
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
       .policy = "deepspeed init_scale=2^12 scale_window=500 min_scale=1 delayed_shift=3 "
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
}

constexpr StackVersion k0169 = {0, 16, 9}, k0180 = {0, 18, 0}, k0192 = {0, 19, 2},
                       k0198 = {0, 19, 8};

TrainingConfig InterpretAs(const std::string& text, std::optional<StackVersion> version) {
  return Interpret(text, {.backend = {}, .kind = "", .version = version});
}

TEST(DeepSpeedConfig, ClipsAtOneByDefaultSince0193) {
  const std::string bare = DeepSpeed(R"("enabled": true)", kZero);
  const TrainingConfig newest = InterpretAs(bare, {});
  EXPECT_EQ(newest.clipping.max_norm, 1.0);
  EXPECT_TRUE(HasNote(newest, "gradient_clipping is not given: 1.0"));
  EXPECT_EQ(InterpretAs(bare, k0198).clipping.max_norm, 1.0);
  EXPECT_FALSE(InterpretAs(bare, k0192).clipping.enabled());
  for (const std::string off : {"0", "0.0", "-1"}) {
    const std::string text = DeepSpeed(R"("enabled": true)", "\"gradient_clipping\": " + off);
    EXPECT_FALSE(Interpret(text).clipping.enabled()) << off;
  }
}

// Driven from engines of 0.19.8: stages 0 and 3 skip in any case.
TEST(DeepSpeedConfig, Bf16SkipsWhatIsNotFinite) {
  struct Case {
    int stage;
    std::string check;
    std::optional<StackVersion> version;
    std::string policy;
  };
  const std::string off = R"(, "check_grad_overflow": false)",
                    on = R"(, "check_grad_overflow": true)";
  for (const Case& c : std::vector<Case>{{0, "", {}, "deepspeed-fp16-optimizer loss_scale=1"},
                                         {0, off, {}, "deepspeed-fp16-optimizer loss_scale=1"},
                                         {1, "", {}, "deepspeed loss_scale=1"},
                                         {2, "", k0198, "deepspeed loss_scale=1"},
                                         {1, off, {}, "static loss_scale=1"},
                                         {2, off, {}, "static loss_scale=1"},
                                         {3, off, {}, "deepspeed loss_scale=1"},
                                         {2, "", k0192, "static loss_scale=1"},
                                         {2, on, k0192, "deepspeed loss_scale=1"},
                                         {3, on, k0192, "static loss_scale=1"},
                                         {0, "", k0169, "static loss_scale=1"},
                                         {2, on, k0169, "static loss_scale=1"}}) {
    const TrainingConfig config =
        InterpretAs(R"({"bf16": {"enabled": true)" + c.check +
                        R"(}, "zero_optimization": {"stage": )" + std::to_string(c.stage) + "}}",
                    c.version);
    EXPECT_EQ(config.formats, Texts{"bf16"});
    EXPECT_EQ(PolicyOf(config), c.policy) << c.stage << c.check;
  }
}

TEST(DeepSpeedConfig, EarlierReleasesHaveAnotherFiniteTest) {
  const auto test_of = [](int stage, std::optional<StackVersion> version) {
    const std::string zero = "\"zero_optimization\": {\"stage\": " + std::to_string(stage) + "}";
    return InterpretAs(DeepSpeed(R"("enabled": true)", zero), version).finite_test;
  };
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_FALSE(test_of(stage, {}).has_value());
    const bool elements = stage == 1 || stage == 2;
    EXPECT_EQ(test_of(stage, k0192), elements ? FiniteTest::kElementwise : FiniteTest::kSum);
    EXPECT_EQ(test_of(stage, StackVersion{0, 12, 0}), FiniteTest::kSum);
  }
}

TEST(DeepSpeedConfig, TorchAutocastIsTorchsScaler) {
  const auto autocast = [](const std::string& dtype, const std::string& rest) {
    return R"({"torch_autocast": {"enabled": true)" + dtype + "}" + rest + "}";
  };
  const std::string fp16 = R"(, "dtype": "float16")", bf16 = R"(, "dtype": "bfloat16")";
  const std::string zero = std::string(", ") + kZero + R"(, "train_batch_size": 8)";
  const std::string plain = R"(, "train_batch_size": 8)";
  const auto expect = [](const std::string& text, const Texts& formats, const std::string& policy) {
    EXPECT_EQ(Interpret(text).formats, formats) << text;
    EXPECT_EQ(PolicyOf(Interpret(text)), policy) << text;
  };
  expect(autocast(fp16, plain), {"fp16"}, "torch");
  expect(autocast(bf16, plain), {"bf16"}, "static loss_scale=1");
  expect(autocast(bf16, zero), {"bf16"}, "deepspeed loss_scale=1");
  EXPECT_THROW(Interpret(autocast(fp16, zero)), Error);
  EXPECT_THROW(Interpret(autocast("", plain)), Error);
  EXPECT_THROW(Interpret(autocast(fp16, R"(, "fp16": {"enabled": true})")), Error);
  EXPECT_THROW(Interpret(autocast(fp16, R"(, "bf16": {"enabled": true})")), Error);
}

TEST(DeepSpeedConfig, ValuesAreConvertedAsByItsClasses) {
  const std::string dynamic = "init_scale=2^16 scale_window=1000 min_scale=1 ";
  struct Case {
    std::string fp16, policy;
  };
  for (const Case& c : std::vector<Case>{
           {R"("enabled": "yes")", dynamic + "delayed_shift=2 consecutive_hysteresis=false"},
           {R"("enabled": 1)", dynamic + "delayed_shift=2 consecutive_hysteresis=false"},
           {R"("enabled": "On", "hysteresis": true, "consecutive_hysteresis": "t")",
            dynamic + "delayed_shift=1 consecutive_hysteresis=true"},
           {R"("enabled": true, "hysteresis": "-1", "loss_scale": "0")",
            dynamic + "delayed_shift=0 consecutive_hysteresis=false"},
           {R"("enabled": true, "initial_scale_power": -2, "loss_scale_window": 7.0)",
            "init_scale=2^-2 scale_window=7 min_scale=1 delayed_shift=2 "
            "consecutive_hysteresis=false"},
           {R"("enabled": true, "loss_scale": 64, "loss_scale_window": 0, "min_loss_scale": -1)",
            "loss_scale=64"}}) {
    EXPECT_EQ(PolicyOf(Interpret(DeepSpeed(c.fp16, kZero))), "deepspeed " + c.policy) << c.fp16;
  }
  for (const char* off : {R"("enabled": "no", "loss_scale_window": 0)", R"("enabled": 0)"}) {
    EXPECT_EQ(PolicyOf(Interpret(DeepSpeed(off, kZero))), kNothing) << off;
  }
}

TEST(DeepSpeedConfig, WhatNewReleasesRefuseIsNotedOrRefused) {
  struct Case {
    std::string text;
    StackVersion since;
    std::string note;
  };
  for (const Case& c :
       std::vector<Case>{{DeepSpeed(R"("enabled": true, "min_loss_scale": 0.5)"),
                          {0, 17, 1},
                          "is not an integer"},
                         {DeepSpeed(R"("enabled": false, "min_loss_scale": 0.5)"),
                          {0, 17, 1},
                          "is not an integer"},
                         {DeepSpeed(R"("enabled": true, "min_loss_scale": 0)"),
                          {0, 19, 3},
                          "min_loss_scale of 0"},
                         {DeepSpeed("", R"("bf16": {"enabled": true, "loss_scale": 0})"),
                          {0, 17, 1},
                          "bf16.loss_scale is not read"},
                         {DeepSpeed("", R"("curriculum_learning": {"enabled": true})"),
                          {0, 19, 8},
                          "curriculum_learning: DeepSpeed refuses this key since 0.19.8"}}) {
    EXPECT_TRUE(HasNote(InterpretAs(c.text, {}), c.note)) << c.text;
    EXPECT_THROW(InterpretAs(c.text, c.since), Error) << c.text;
    EXPECT_FALSE(HasNote(InterpretAs(c.text, k0169), "DeepSpeed refuses")) << c.text;
  }
}

TEST(DeepSpeedConfig, WhatEveryReleaseRefusesIsRefused) {
  for (const std::string& text : Texts{
           R"({"fp16": null, "train_batch_size": 8})", R"({"zero_optimization": null, "fp16": {}})",
           DeepSpeed(R"("enabled": null)"), DeepSpeed(R"("enabled": true, "hysteresis": null)"),
           DeepSpeed(R"("enabled": true, "loss_scale": null)"),
           DeepSpeed(R"("enabled": true, "loss_scale": -1)"),
           DeepSpeed(R"("enabled": true, "loss_scale": true)"),
           DeepSpeed(R"("enabled": true, "loss_scale_window": true)"),
           DeepSpeed(R"("enabled": true, "min_loss_scale": false)"), DeepSpeed(R"("enabled": 2)"),
           DeepSpeed(R"("enabled": true)", R"("gradient_accumulation_steps": "2")"),
           DeepSpeed(R"("enabled": true)", R"("gradient_clipping": null)"),
           DeepSpeed(R"("enabled": true, "fp16_master_weights_and_grads": true)"),
           R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})"}) {
    EXPECT_THROW(Interpret(text), Error) << text;
  }
}

TEST(DeepSpeedConfig, WithoutZeroAnotherOptimizerScales) {
  for (const std::string zero : {"", R"("zero_optimization": {"stage": 0})",
                                 R"("zero_optimization": {})", R"("zero_optimization": false)"}) {
    const TrainingConfig config =
        Interpret(DeepSpeed(R"("enabled": true, "hysteresis": 4, "loss_scale_window": 3)", zero));
    EXPECT_EQ(PolicyOf(config),
              "deepspeed-fp16-optimizer init_scale=2^16 scale_window=3 min_scale=1");
    EXPECT_TRUE(HasNote(config, "hysteresis has no effect"));
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
  EXPECT_EQ(PolicyOf(bf16), "deepspeed-fp16-optimizer loss_scale=1");
  EXPECT_TRUE(HasNote(bf16, "fp16.enabled is auto: read as false"));
  const TrainingConfig old = Interpret(R"({"bfloat16": {"enabled": true}})");
  EXPECT_EQ(old.formats, Texts{"bf16"});
  const TrainingConfig none = Interpret(DeepSpeed(R"("enabled": false)"));
  EXPECT_EQ(none.formats, Texts{});
  EXPECT_TRUE(HasNote(none, "computes in float32"));
  ExpectConfigError(DeepSpeed(R"("enabled": true)", R"("bf16": {"enabled": true})"),
                    "f: bf16.enabled: bfloat16 and fp16 modes cannot be simultaneously enabled");
}

TEST(DeepSpeedConfig, VersionsBefore0171TakeOtherDefaults) {
  const auto read = [](const std::string& text, std::optional<StackVersion> version) {
    return Interpret(text, {.backend = {}, .kind = "", .version = version});
  };
  const std::string bare = DeepSpeed(R"("enabled": true)", kZero);
  EXPECT_TRUE(HasNote(read(bare, {}), "before 0.17.1 takes other defaults"));
  EXPECT_EQ(PolicyOf(read(bare, StackVersion{0, 17, 0})),
            "deepspeed-0.16 init_scale=2^32 delayed_shift=1");
  EXPECT_EQ(PolicyOf(read(bare, StackVersion{0, 17, 1})), PolicyOf(read(bare, {})));
  EXPECT_FALSE(HasNote(read(bare, StackVersion{0, 17, 1}), "before 0.17.1"));
  // Any key of dynamic scaling brings the configuration's defaults.
  const std::string keyed = DeepSpeed(R"("enabled": true, "hysteresis": 2)", kZero);
  EXPECT_EQ(read(keyed, StackVersion{0, 16, 0}).policies.at(0).settings,
            read(bare, {}).policies.at(0).settings);
  // Without ZeRO, only the optimizer of LAMB differs.
  const std::string plain = DeepSpeed(R"("enabled": true)");
  EXPECT_EQ(PolicyOf(read(plain, StackVersion{0, 16, 0})), PolicyOf(read(plain, {})));
  const std::string lamb = DeepSpeed(R"("enabled": true)", R"("optimizer": {"type": "Lamb"})");
  EXPECT_TRUE(HasNote(read(lamb, {}), "a min_loss_scale of 0.25"));
  EXPECT_EQ(PolicyOf(read(lamb, StackVersion{0, 16, 0})),
            "deepspeed-fp16-optimizer init_scale=2^16 min_scale=0.25");
}

TEST(DeepSpeedConfig, UnknownKeysOfFp16AreNotedOrRefused) {
  const std::string text = DeepSpeed(R"("enabled": true, "opt_level": "O2")");
  EXPECT_TRUE(HasNote(Interpret(text), "fp16.opt_level is not read"));
  EXPECT_NO_THROW(Interpret(text, {.backend = {}, .kind = "", .version = StackVersion{0, 16, 0}}));
  EXPECT_THROW(Interpret(text, {.backend = {}, .kind = "", .version = StackVersion{0, 17, 1}}),
               Error);
}

TEST(DeepSpeedConfig, WhatIsNotSimulatedIsNoted) {
  const TrainingConfig config =
      Interpret(DeepSpeed("", R"("prescale_gradients": true, "gradient_predivide_factor": 8,
                       "communication_data_type": "fp16")"));
  for (const std::string key :
       {"prescale_gradients", "gradient_predivide_factor", "communication_data_type"}) {
    EXPECT_TRUE(HasNote(config, key + " is not simulated")) << key;
  }
  const TrainingConfig defaults =
      Interpret(DeepSpeed("", R"("prescale_gradients": false, "gradient_predivide_factor": 1.0,
                       "communication_data_type": null)"));
  EXPECT_FALSE(HasNote(defaults, "is not simulated"));
}

// apex.amp.initialize() gets the block.
TEST(DeepSpeedConfig, AmpIsApexsScaler) {
  const TrainingConfig config = Interpret(R"({"zero_optimization": {"stage": 0},
                    "amp": {"enabled": true, "opt_level": "O2", "min_loss_scale": 2}})");
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(config), "apex min_loss_scale=2");
  EXPECT_FALSE(HasNote(config, "float32"));
  EXPECT_EQ(PolicyOf(Interpret(R"({"zero_optimization": {}, "amp": {"enabled": false}})")),
            kNothing);
}

TEST(DeepSpeedConfig, GptNeoxSaysThePrecision) {
  const std::string rest = "\"zero_optimization\": {\"stage\": 1}\n";
  const TrainingConfig fp16 = Interpret("\"precision\": \"fp16\"\n" + rest);
  EXPECT_EQ(fp16.formats, Texts{"fp16"});
  EXPECT_EQ(fp16.policies.at(0).name, "deepspeed-0.16");
  const TrainingConfig keyed =
      Interpret("precision: fp16\nfp16: {fp16: true, initial_scale_power: 12}\n" + rest);
  EXPECT_EQ(keyed.policies.at(0).settings.at(0), "init_scale=2^12");
  EXPECT_EQ(Interpret("precision: bfloat16\n" + rest).formats, Texts{"bf16"});
  EXPECT_EQ(Interpret("precision: fp32\n" + rest).formats, Texts{});
  ExpectConfigError("precision: bfloat16\nfp16: {enabled: true}\n",
                    "f:1: precision: DeepSpeed fp16 field was set but precision conflicts");
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
  refuse(R"("min_loss_scale": -1.5)",
         "min_loss_scale: negative number, expected 0 or more, got -1.5");
  refuse(R"("initial_scale_power": 2000)",
         "initial_scale_power: too large, expected an integer of at most 1023, got 2000");
  refuse(R"("loss_scale": "dynamic")", "loss_scale: wrong type, expected a number, got 'dynamic'");
  refuse(R"("loss_scale_window": true)",
         "loss_scale_window: must be an integer, not bool, expected an integer, got true");
  refuse(R"("loss_scale_windw": 5)",
         "loss_scale_windw: unknown key (did you mean 'loss_scale_window'?), expected one of "
         "enabled, auto_cast, loss_scale, "
         "initial_scale_power, loss_scale_window, hysteresis, consecutive_hysteresis, "
         "min_loss_scale, fp16_master_weights_and_grads");
  ExpectConfigError(R"({"zero_optimization": {}, "fp16": 1})",
                    "f: fp16: wrong type, expected keys with values, got 1");
  ExpectConfigError(R"({"zero_optimization": {"stage": 4}, "fp16": {}})",
                    "f: zero_optimization.stage: no such stage of ZeRO, expected 0, 1, 2 or 3, got "
                    "4");
}

}  // namespace
}  // namespace dlsim::sim
