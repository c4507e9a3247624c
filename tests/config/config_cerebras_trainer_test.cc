// SPDX-License-Identifier: Apache-2.0
// The trainer's configurations of the Cerebras Model Zoo: what they mean, and the original's rules.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

TEST(ModelZoo, ReadsARealisticTrainer) {
  const TrainingConfig config = ReadExpecting(
      "model_zoo_gpt3.yaml",
      {.kind = "Model Zoo trainer",
       .formats = {"cb16"},
       .policy = "cerebras-2.10 fp16_type=cbfloat16 init_scale=65536.0 steps_per_increase=1000"});
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_FALSE(config.clipping.max_value);
  EXPECT_EQ(config.clipping.rule, ClipRule::kTorch);
  EXPECT_EQ(config.precision_opt_level, 1);
  EXPECT_FALSE(config.grad_accum_steps);
}

TEST(ModelZoo, DefaultsAreThoseOfMixedPrecision) {
  const TrainingConfig config = Interpret("trainer: {init: {precision: {}}}");
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "static loss_scale=1");
  EXPECT_TRUE(HasNote(config, "bfloat16: no loss scaling"));
}

TEST(ModelZoo, WithoutPrecisionNothingIsScaled) {
  const TrainingConfig config = Interpret("trainer: {init: {}}");
  EXPECT_EQ(config.formats, Texts{});
  EXPECT_EQ(PolicyOf(config), "static loss_scale=1");
  EXPECT_TRUE(HasNote(config, "no trainer.init.precision"));
}

TEST(ModelZoo, AllParametersReachTheScaler) {
  const TrainingConfig config = Interpret(
      Trainer({"enabled: true", "fp16_type: float16", "loss_scaling_factor: dynamic",
               "initial_loss_scale: 1e3", "steps_per_increase: 20", "min_loss_scale: 0.5",
               "max_loss_scale: 4096", "max_gradient_value: 2", "log_loss_scale: false"}));
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(config),
            "cerebras-2.10 fp16_type=float16 init_scale=1e3 steps_per_increase=20 "
            "min_loss_scale=0.5 max_loss_scale=4096");
  EXPECT_EQ(config.clipping.max_value, 2.0);
  EXPECT_EQ(PathOf(RunConfig(config, 2, {0})), "1000.000000, 500.000000 x2");
}

TEST(ModelZoo, AStaticScaleOnCsxIsStatic) {
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: 1024"}));
  EXPECT_EQ(PolicyOf(config), "cerebras-2.10 fp16_type=float16 loss_scale=1024");
  EXPECT_EQ(PathOf(RunConfig(config, 3, {1})), "1024.000000, 1024.000000 x3");
}

TEST(ModelZoo, ZeroIsTheDefault) {
  const TrainingConfig factor =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: 0"}));
  EXPECT_TRUE(HasNote(factor, "loss_scaling_factor 0 means the default, 1"));
  EXPECT_EQ(RunConfig(factor, 1, {}).scale_init, 1);
  const TrainingConfig limits =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: dynamic",
                         "initial_loss_scale: 0", "min_loss_scale: 0.0", "max_loss_scale: 0"}));
  EXPECT_EQ(RunConfig(limits, 1, {}).scale_init, 32768);
}

TEST(ModelZoo, Bfloat16SwitchesScalingOff) {
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: bfloat16", "loss_scaling_factor: dynamic"}));
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "static loss_scale=1");
  EXPECT_TRUE(HasNote(config, "bfloat16 switches loss scaling off"));
}

TEST(ModelZoo, Cbfloat16OnCsxNeedsDynamicScaling) {
  ExpectConfigError(Trainer({"fp16_type: cbfloat16"}),
                    "f:4: trainer.init.precision: In order to use cbfloat16, dynamic loss scaling "
                    "must be enabled. Otherwise, gradients might underflow/overflow in the middle "
                    "of training and cause NaNs. Please set `loss_scaling_factor` to `dynamic` to "
                    "use cbfloat16.");
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: cbfloat16", "loss_scaling_factor: dynamic"}));
  EXPECT_EQ(config.formats, Texts{"cb16"});
  EXPECT_EQ(RunConfig(config, 1, {}).scale_init, 0x1p31);
}

TEST(ModelZoo, Cbfloat16OffCsxIsBfloat16WithAScaler) {
  const TrainingConfig config = Interpret(Trainer({"fp16_type: cbfloat16"}), kOnGpu);
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "torch init_scale=1 growth_interval=9223372036854775807");
  EXPECT_TRUE(HasNote(config, "cbfloat16 is only supported on CSX"));
  EXPECT_TRUE(HasNote(config, "GradScaler is made all the same"));
}

TEST(ModelZoo, OnGpusTorchScales) {
  const TrainingConfig config = Interpret(
      Trainer({"fp16_type: float16", "loss_scaling_factor: dynamic", "max_loss_scale: 8"}), kOnGpu);
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_EQ(PolicyOf(config), "torch init_scale=65536 growth_interval=2000");
  EXPECT_TRUE(HasNote(config, "min_loss_scale and max_loss_scale have no effect outside CSX"));
}

TEST(ModelZoo, AStaticScaleOnGpusHalvesForGood) {
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: 1024"}), kOnGpu);
  EXPECT_TRUE(HasNote(config, "an overflow halves it for good"));
  EXPECT_EQ(PathOf(RunConfig(config, 5000, {1})), "1024.000000, 1024.000000 x1, 512.000000 x4999");
}

TEST(ModelZoo, CpusComputeInBfloat16) {
  const TrainingConfig config =
      Interpret(Trainer({"fp16_type: float16", "loss_scaling_factor: dynamic"}), kOnCpu);
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "torch init_scale=65536 growth_interval=2000");
  EXPECT_TRUE(HasNote(config, "mixed precision on CPU is only supported with bfloat16"));
}

TEST(ModelZoo, TheBackendOfTheFileCountsUnlessAnotherIsAsked) {
  const std::string text =
      "trainer: {init: {backend: {backend_type: GPU}, precision: {fp16_type: float16}}}";
  EXPECT_EQ(Interpret(text).policies.at(0).name, "torch");
  EXPECT_EQ(Interpret(text, {.backend = Backend::kCsx, .kind = ""}).policies.at(0).name,
            "cerebras-2.10");
  ExpectConfigError("trainer: {init: {backend: {backend_type: TPU}}}",
                    "f:1: trainer.init.backend.backend_type: unknown name (did you mean "
                    "'GPU'?), expected one of CSX, GPU, CPU, got 'TPU'");
}

TEST(ModelZoo, ADeviceTakesThePlaceOfABackend) {
  const auto policy_on = [](const std::string& init) {
    const TrainingConfig config =
        Interpret("trainer: {init: {" + init + ", precision: {fp16_type: float16}}}");
    return config.policies.at(0).name;
  };
  EXPECT_EQ(policy_on("device: GPU"), "torch");
  EXPECT_EQ(policy_on("device: gpu"), "torch");
  EXPECT_EQ(policy_on("device: Csx"), "cerebras-2.10");
  EXPECT_EQ(policy_on("backend: {backend_type: gpu}"), "torch");
  EXPECT_EQ(policy_on("backend: {cluster_config: {}}, device: GPU"), "torch");
  ExpectConfigError("trainer: {init: {device: GPU, backend: {backend_type: GPU}}}",
                    "f:1: trainer.init.device: backend and device are mutually exclusive arguments "
                    "of Trainer. Please only provide one or the other");
  ExpectConfigError("trainer: {init: {device: TPU}}",
                    "f:1: trainer.init.device: unknown name (did you mean 'GPU'?), expected one "
                    "of CSX, GPU, CPU, got 'TPU'");
}

TEST(ModelZoo, MixedPrecisionOffIsForOtherBackends) {
  const Texts lines = {"enabled: false", "fp16_type: float16", "loss_scaling_factor: dynamic"};
  const TrainingConfig on_csx = Interpret(Trainer(lines));
  EXPECT_EQ(on_csx.formats, Texts{"fp16"});
  EXPECT_TRUE(HasNote(on_csx, "must be enabled for CSX"));
  const TrainingConfig on_gpu = Interpret(Trainer(lines), kOnGpu);
  EXPECT_EQ(on_gpu.formats, Texts{});
  EXPECT_EQ(on_gpu.policies.at(0).name, "torch");
  EXPECT_TRUE(HasNote(on_gpu, "computes in float32"));
}

TEST(ModelZoo, AccumulationCountsOffCsx) {
  const std::string text = "trainer: {init: {loop: {grad_accum_steps: 4}}}";
  EXPECT_FALSE(Interpret(text).grad_accum_steps);
  EXPECT_TRUE(HasNote(Interpret(text), "grad_accum_steps has no effect on CSX"));
  EXPECT_EQ(Interpret(text, kOnGpu).grad_accum_steps, 4);
  ExpectConfigError("trainer: {init: {loop: {grad_accum_steps: 0}}}",
                    "f:1: trainer.init.loop.grad_accum_steps: too small, expected an integer of 1 "
                    "or more, got 0");
}

TEST(ModelZoo, OfSeveralTrainersTheFirstIsRead) {
  const TrainingConfig config = Interpret(
      "trainer:\n- trainer:\n    init: {precision: {fp16_type: float16}}\n- trainer: {init: {}}\n");
  EXPECT_EQ(config.formats, Texts{"fp16"});
  EXPECT_TRUE(HasNote(config, "2 trainers"));
  ExpectConfigError("trainer: [{trainer: {init: {precision: {fp16_type: fp8}}}}]",
                    "f:1: trainer[0].trainer.init.precision.fp16_type: unknown name, expected one "
                    "of float16, bfloat16, cbfloat16, got 'fp8'");
}

TEST(ModelZoo, ClippingTwiceIsTheOriginalsError) {
  ExpectConfigError(Trainer({"max_gradient_norm: 1.0", "max_gradient_value: 2"}),
                    "f:4: trainer.init.precision: Gradients can be clipped by norm(=1.0) or by "
                    "value(=2), but not both. Do not set both `max_gradient_norm` and "
                    "`max_gradient_value`.");
  ExpectConfigError(Trainer({"max_gradient_norm: 0"}),
                    "f:4: trainer.init.precision: max_gradient_norm has to be a positive float. "
                    "Got 0");
  ExpectConfigError(Trainer({"max_gradient_value: -1e-3"}),
                    "f:4: trainer.init.precision: max_gradient_value has to be a positive float. "
                    "Got -0.001");
}

TEST(ModelZoo, BadValuesAreRefusedWithTheirPlace) {
  const std::string path = "f:4: trainer.init.precision.";
  ExpectConfigError(Trainer({"max_loss_scale: big"}),
                    path + "max_loss_scale: wrong type, expected a number, got 'big'");
  ExpectConfigError(Trainer({"max_loss_scale: '2**15'"}),
                    path + "max_loss_scale: wrong type, expected a number, got '2**15'");
  ExpectConfigError(Trainer({"initial_loss_scale: [1]"}),
                    path + "initial_loss_scale: wrong type, expected a number, got a list");
  ExpectConfigError(Trainer({"min_loss_scale: yes"}),
                    path + "min_loss_scale: wrong type, expected a number, got true");
  ExpectConfigError(Trainer({"min_loss_scale: -1"}),
                    path + "min_loss_scale: negative number, expected 0 or more, got -1");
  ExpectConfigError(Trainer({"max_loss_scale: .nan"}),
                    path +
                        "max_loss_scale: not a number, expected a number such as 2^15, 2e15 or "
                        "0x1.8p+3, got '.nan'");
  ExpectConfigError(Trainer({"max_loss_scale: 1e999"}),
                    path +
                        "max_loss_scale: number out of range, expected a number that binary64 "
                        "can hold, got '1e999'");
  ExpectConfigError(Trainer({"steps_per_increase: 0"}),
                    path +
                        "steps_per_increase: too small, expected an integer of 1 or more, got "
                        "0");
  ExpectConfigError(Trainer({"steps_per_increase: 1.5"}),
                    path +
                        "steps_per_increase: not a 64-bit integer, expected an integer such as "
                        "2000 or 2^10, got '1.5'");
  ExpectConfigError(Trainer({"precision_opt_level: 3"}),
                    path +
                        "precision_opt_level: too large, expected an integer of at most 2, got "
                        "3");
  ExpectConfigError(Trainer({"enabled: 1"}),
                    path + "enabled: wrong type, expected true or false, got 1");
  ExpectConfigError(Trainer({"loss_scaling_factor: static"}),
                    path +
                        "loss_scaling_factor: wrong value, expected a number or 'dynamic', got "
                        "'static'");
  ExpectConfigError(Trainer({"fp16_type: 16"}),
                    path + "fp16_type: wrong type, expected text, got 16");
  ExpectConfigError("trainer: {init: {precision: fp16}}",
                    "f:1: trainer.init.precision: wrong type, expected keys with values, got "
                    "'fp16'");
  ExpectConfigError("trainer: {init: 3}",
                    "f:1: trainer.init: wrong type, expected keys with values, got 3");
}

TEST(ModelZoo, UnknownPrecisionKeysAreNamed) {
  ExpectConfigError(
      Trainer({"max_grad_norm: 1"}),
      "f:4: trainer.init.precision.max_grad_norm: unknown key (did you mean "
      "'max_gradient_norm'?), expected one of enabled, fp16_type, precision_opt_level, "
      "loss_scaling_factor, "
      "initial_loss_scale, steps_per_increase, min_loss_scale, max_loss_scale, "
      "max_gradient_norm, max_gradient_value, log_loss_scale");
}

TEST(ModelZoo, LimitsInTheWrongOrderAreRefused) {
  const Texts dynamic = {"fp16_type: float16", "loss_scaling_factor: dynamic"};
  Texts lines = dynamic;
  lines.push_back("min_loss_scale: 8");
  lines.push_back("max_loss_scale: 4");
  ExpectConfigError(Trainer(lines),
                    "f:6: trainer.init.precision.min_loss_scale: above max_loss_scale, expected at "
                    "most 4.0, got 8");
  lines = dynamic;
  lines.push_back("min_loss_scale: 65536");
  ExpectConfigError(Trainer(lines),
                    "f:6: trainer.init.precision.min_loss_scale: above max_loss_scale, expected at "
                    "most 32768.0, got 65536");
  lines = dynamic;
  lines.push_back("max_loss_scale: 1e-6");
  ExpectConfigError(Trainer(lines),
                    "f:6: trainer.init.precision.max_loss_scale: below min_loss_scale, expected at "
                    "least 6.103515625e-05, got 1e-6");
  // With cbfloat16 the default ceiling is 2^31.
  EXPECT_NO_THROW(Interpret(
      Trainer({"fp16_type: cbfloat16", "loss_scaling_factor: dynamic", "min_loss_scale: 65536"})));
}

}  // namespace
}  // namespace dlsim::sim
