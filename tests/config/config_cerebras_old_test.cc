// SPDX-License-Identifier: Apache-2.0
// Configurations of the Cerebras Model Zoo before the trainer class, for PyTorch and TensorFlow.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// An old configuration with these lines in `model` and `optimizer`.
std::string Old(const Texts& model, const Texts& optimizer) {
  std::string text = "model:\n";
  for (const std::string& line : model) text += "  " + line + "\n";
  text += "optimizer:\n";
  for (const std::string& line : optimizer) text += "  " + line + "\n";
  return text + "  optimizer_type: SGD\n";
}

const std::string kTf = "Model Zoo TensorFlow Trainer";
const std::string kPytorch = "Model Zoo before the trainer class";

TEST(ModelZooOld, ReadsARealisticFile) {
  const TrainingConfig config =
      ReadExpecting("model_zoo_old.yaml", {.kind = "Model Zoo before the trainer class",
                                           .formats = {"fp16"},
                                           .policy = "torch init_scale=2^15 growth_interval=500"});
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_EQ(config.grad_accum_steps, 4);
  EXPECT_EQ(config.precision_opt_level, 2);
  const TrainingConfig on_csx =
      ReadTrainingConfig(kConfigs + "model_zoo_old.yaml", {.backend = Backend::kCsx, .kind = ""});
  EXPECT_EQ(PolicyOf(on_csx),
            "cerebras-2.10 fp16_type=float16 steps_per_increase=500 max_loss_scale=16384.0");
  EXPECT_FALSE(on_csx.grad_accum_steps);
  EXPECT_TRUE(HasNote(on_csx, "grad_accum_steps has no effect on CSX"));
}

TEST(ModelZooOld, Bfloat16TakesTheDynamicsAway) {
  for (const std::string type : {"use_bfloat16: True", "fp16_type: bfloat16"}) {
    const std::string text = Old({"mixed_precision: True", type}, {"loss_scaling_factor: dynamic"});
    const TrainingConfig config = Interpret(text);
    EXPECT_EQ(config.formats, Texts{"bf16"});
    EXPECT_EQ(PolicyOf(config), "cerebras-2.10 fp16_type=bfloat16 loss_scale=1");
    EXPECT_TRUE(HasNote(config, "no dynamic loss scaling with bfloat16"));
  }
  const TrainingConfig kept =
      Interpret(Old({"fp16_type: bfloat16"}, {"loss_scaling_factor: 16.0"}));
  EXPECT_EQ(PolicyOf(kept), "cerebras-2.10 fp16_type=bfloat16 loss_scale=16.0");
}

TEST(ModelZooOld, Cbfloat16FollowsTheRulesOfItsTime) {
  const Texts model = {"mixed_precision: True", "fp16_type: cbfloat16"};
  EXPECT_EQ(Interpret(Old(model, {"loss_scaling_factor: dynamic"})).formats, Texts{"cb16"});
  ExpectConfigError(Old(model, {"loss_scaling_factor: 2"}),
                    "f:5: optimizer: In order to use cbfloat16, dynamic loss scaling must be "
                    "enabled. Otherwise, gradients might underflow/overflow in the middle of "
                    "training and cause NaNs. Please set `loss_scaling_factor` to `dynamic` to use "
                    "cbfloat16.");
  const TrainingConfig on_gpu = Interpret(Old(model, {"loss_scaling_factor: dynamic"}), kOnGpu);
  EXPECT_EQ(on_gpu.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(on_gpu), "torch init_scale=1 growth_interval=9223372036854775807");
}

TEST(ModelZooOld, CpusDoNotScale) {
  const TrainingConfig config =
      Interpret(Old({"mixed_precision: True"}, {"loss_scaling_factor: dynamic"}), kOnCpu);
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "static loss_scale=1");
  EXPECT_TRUE(HasNote(config, "not supported on CPU"));
}

TEST(ModelZooOld, OtherKeysAreIgnoredAndSlipsNoted) {
  const TrainingConfig config = Interpret(Old({}, {"momentum: 0.9", "steps_per_incrase: 5"}));
  EXPECT_TRUE(HasNote(config,
                      "optimizer.steps_per_incrase is not read (did you mean "
                      "'steps_per_increase'?)"));
  EXPECT_TRUE(HasNote(config, "computes in float32"));
  EXPECT_EQ(config.notes.size(), 2u);
  ExpectConfigError(Old({}, {"max_gradient_norm: -1.0"}),
                    "f:3: optimizer: max_gradient_norm has to be a positive float. Got -1.0");
}

TEST(ModelZooOld, IsRecognizedByItsOptimizer) {
  EXPECT_EQ(Interpret("optimizer: {optimizer_type: AdamW}").kind, kPytorch);
  EXPECT_EQ(Interpret("optimizer: {loss_scaling_factor: 2}").kind, kPytorch);
  // The model and the optimizer of anything.
  for (const std::string text :
       {"model: {a: 1}\noptimizer: {name: adam}", "model: resnet\noptimizer: adam"}) {
    ExpectConfigError(
        text,
        "f:1: not a known training configuration, expected the keys of one of "
        "verl, accelerate, megatron, fairseq, huggingface, lightning, cerebras, deepspeed, "
        "torchtitan, torch, apex, cerebras-tf, cerebras-old, dlsim (or name "
        "it by --config-kind), got model, optimizer");
  }
}

TEST(ModelZooOld, GptModelsChooseBfloat16Since191) {
  const Texts gpt = {"mixed_precision: True", "use_bias_in_output: False"};
  const Texts dynamic = {"loss_scaling_factor: dynamic"};
  const auto formats = [&](const Texts& model, std::optional<StackVersion> version) {
    return Interpret(Old(model, dynamic), {.backend = {}, .kind = "", .version = version}).formats;
  };
  const TrainingConfig config = Interpret(Old(gpt, dynamic));
  EXPECT_EQ(config.formats, Texts{"bf16"});
  EXPECT_EQ(PolicyOf(config), "cerebras-2.10 fp16_type=bfloat16 loss_scale=1");
  EXPECT_TRUE(HasNote(config, "GPT models choose bfloat16 since release 1.9.1"));
  EXPECT_EQ(formats(gpt, StackVersion{1, 9, 1}), Texts{"bf16"});
  EXPECT_EQ(formats(gpt, StackVersion{1, 8, 0}), Texts{"fp16"});
  EXPECT_EQ(formats({"mixed_precision: True", "attention_module: x"}, {}), Texts{"bf16"});
  // Files of release 1.6 have the weight alone.
  EXPECT_EQ(formats({"mixed_precision: True", "use_bias_in_output: False", "loss_weight: 1"}, {}),
            Texts{"fp16"});
  EXPECT_EQ(formats({"mixed_precision: True", "use_bias_in_output: False", "loss_weight: 1",
                     "loss_scaling: batch_size"},
                    {}),
            Texts{"bf16"});
  EXPECT_EQ(
      formats({"mixed_precision: True", "use_bias_in_output: False", "fp16_type: float16"}, {}),
      Texts{"fp16"});
  EXPECT_EQ(
      formats({"mixed_precision: True", "use_bias_in_output: False", "use_bfloat16: False"}, {}),
      Texts{"fp16"});
  // Release 2.4 converts any file to the trainer's layout.
  EXPECT_EQ(formats({"mixed_precision: True"}, {}), Texts{"fp16"});
  EXPECT_EQ(formats({"mixed_precision: True"}, StackVersion{2, 4, 0}), Texts{"bf16"});
}

TEST(ModelZooOld, TheDocumentsOfRelease16Count) {
  const std::string rest = "optimizer: {optimizer_type: SGD, loss_scaling_factor: dynamic}\n";
  EXPECT_EQ(Interpret("training: {mixed_precision: True}\n" + rest).formats, Texts{"fp16"});
  EXPECT_EQ(Interpret("training: {mixed_precision: True}\nmodel: {mixed_precision: False}\n" + rest)
                .formats,
            Texts{});
  const std::string cbfloat16 = "csconfig: {use_cbfloat16: True}\n" + rest;
  const std::string mixed = "model: {mixed_precision: True}\n" + cbfloat16;
  EXPECT_EQ(Interpret(mixed).formats, Texts{"cb16"});
  EXPECT_EQ(Interpret(mixed, kOnGpu).formats, Texts{"fp16"});
  EXPECT_EQ(Interpret("runconfig: {tf_random_seed: 1}\n" + mixed).formats, Texts{"cb16"});
  ExpectConfigError(cbfloat16,
                    "f:1: csconfig.use_cbfloat16: use_cbfloat16=True can only be used in mixed "
                    "precision mode. Set mixed_precision to True.");
}

TEST(ModelZooOld, TheCaseOfTheDeviceDoesNotCount) {
  const std::string text = Old({}, {"loss_scaling_factor: dynamic"});
  EXPECT_EQ(Interpret(text + "runconfig: {target_device: gpu}\n").policies.at(0).name, "torch");
}

TEST(TfTrainer, ReadsARealisticFile) {
  const TrainingConfig config = ReadExpecting(
      "tf_trainer.yaml",
      {.kind = "Model Zoo TensorFlow Trainer",
       .formats = {"fp16"},
       .policy = "cerebras-tf initial_loss_scale=16384 increment_period=1000 min_loss_scale=1e-3 "
                 "max_loss_scale=1048576 overflow_tolerance=0.1"});
  EXPECT_EQ(config.clipping.max_norm, 1.0);
  EXPECT_FALSE(config.clipping.max_value);  // 0 is off
  EXPECT_EQ(config.clipping.rule, ClipRule::kTensorFlow);
  EXPECT_EQ(config.grad_accum_steps, 2);
  EXPECT_EQ(RunConfig(config, 1, {}).scale_init, 16384);
}

TEST(TfTrainer, KnowsThreeKindsOfScaling) {
  const ConfigOptions tf = {.backend = std::nullopt, .kind = "cerebras-tf"};
  EXPECT_EQ(PolicyOf(Interpret(Old({}, {"loss_scaling_factor: dynamic"}), tf)), "cerebras-tf");
  const TrainingConfig native = Interpret(
      Old({}, {"loss_scaling_factor: tf_dynamic", "steps_per_increase: 7", "min_loss_scale: 1"}));
  EXPECT_EQ(PolicyOf(native), "tf increment_period=7");
  EXPECT_TRUE(HasNote(native, "CSDynamicLossScale takes its place"));
  EXPECT_EQ(PolicyOf(Interpret(Old({}, {"loss_scaling_factor: 8."}), tf)), "static loss_scale=8.");
  // numpy.isclose(1.000001, 1.0): no scaling at all.
  EXPECT_EQ(PolicyOf(Interpret(Old({}, {"loss_scaling_factor: 1.000001"}), tf)),
            "static loss_scale=1");
  EXPECT_EQ(PolicyOf(Interpret(Old({}, {"momentum: 0.9"}), tf)), "static loss_scale=1");
  ExpectConfigError(Old({}, {"loss_scaling_factor: auto"}),
                    "f:3: optimizer.loss_scaling_factor: wrong value, expected a number, 'dynamic' "
                    "or 'tf_dynamic', got 'auto'",
                    tf);
}

TEST(TfTrainer, IsDistinguishedByItsOwnKeys) {
  EXPECT_EQ(Interpret(Old({"tf_summary: False"}, {"momentum: 0.9"})).kind, kTf);
  for (const std::string key : {"overflow_tolerance: 0.1", "log_grads: True", "log_hists: True",
                                "rmsprop_decay: 0.9", "rmsprop_momentum: 0.9"}) {
    EXPECT_EQ(Interpret(Old({}, {key})).kind, kTf) << key;
  }
  for (const std::string key : {"save_checkpoints_steps: 5", "tf_random_seed: 1",
                                "throttle_secs: 0", "log_step_count_steps: 1"}) {
    EXPECT_EQ(Interpret(Old({}, {}) + "runconfig: {" + key + "}\n").kind, kTf) << key;
  }
  // Both trainers read these.
  for (const std::string key :
       {"log_summaries: True", "ws_summary: True", "disable_lr_steps_reset: True"}) {
    EXPECT_EQ(Interpret(Old({}, {key})).kind, kPytorch) << key;
  }
}

TEST(TfTrainer, PytorchsMarksComeFirst) {
  for (const std::string model : {"fp16_type: float16", "use_bfloat16: False"}) {
    EXPECT_EQ(Interpret(Old({"tf_summary: False", model}, {})).kind, kPytorch) << model;
  }
  for (const std::string key : {"betas: [0.9, 0.95]", "correct_bias: True"}) {
    EXPECT_EQ(Interpret(Old({}, {"log_grads: True", key})).kind, kPytorch) << key;
  }
  for (const std::string key : {"log_steps: 1", "checkpoint_steps: 1"}) {
    const std::string runconfig = "runconfig: {log_step_count_steps: 1, " + key + "}\n";
    EXPECT_EQ(Interpret(Old({}, {}) + runconfig).kind, kPytorch) << key;
  }
  // PyTorch's scaler does not know it.
  EXPECT_EQ(Interpret(Old({"fp16_type: float16"}, {"loss_scaling_factor: tf_dynamic"})).kind, kTf);
}

TEST(TfTrainer, RefusesAsTheOriginal) {
  const std::string own = "log_grads: True";
  ExpectConfigError(Old({}, {own, "max_gradient_norm: 1.0", "max_gradient_value: 1.0"}),
                    "f:3: optimizer: Gradients can be clipped by norm or by value, but not both. "
                    "Do not set both max_gradient_norm and max_gradient_value.");
  ExpectConfigError(Old({}, {own, "max_gradient_norm: -2"}),
                    "f:3: optimizer: max_gradient_norm cannot be negative. Got -2");
  ExpectConfigError(Old({}, {own, "loss_scaling_factor: dynamic", "overflow_tolerance: -0.1"}),
                    "f:5: optimizer.overflow_tolerance: negative number, expected 0 or more, got "
                    "-0.1");
  ExpectConfigError(Old({}, {own, "loss_scaling_factor: dynamic", "initial_loss_scale: 0"}),
                    "f:5: optimizer.initial_loss_scale: out of range, expected a number above 0, "
                    "got 0");
}

}  // namespace
}  // namespace dlsim::sim
