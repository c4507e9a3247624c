// SPDX-License-Identifier: Apache-2.0
// What a configuration asks for and its formats cannot hold. tests/python/test_config_lint.py holds
// the same sentences against torch.
#include "sim/config/lint.h"

#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// The notes that LintConfig adds.
Texts LintOf(std::string_view text) {
  const ConfigNode root = ParseConfig("f", text, GuessLanguage("f", text));
  return LintConfig(InterpretConfig("f", root, {}), root);
}

std::string Titan(const std::string& optimizer) {
  return "[job]\ndump_folder = \"x\"\n[training]\ndtype = \"bfloat16\"\n[optimizer]\n" + optimizer;
}

TEST(Lint, MomentsThatNeverDecay) {
  const auto second = [](const std::string& beta2) {
    return LintOf(Titan("lr = 1.0\nbeta2 = " + beta2 + "\nweight_decay = 0\n"));
  };
  const std::string all = "; at 0.996 all decay";
  const std::string line = "the second moment is bf16: at beta2 ";
  EXPECT_EQ(second("0.999"),
            Texts{line + "0.999 it never decays, since x * 0.999 rounds back to x" + all});
  EXPECT_EQ(second("0.998"), Texts{line +
                                   "0.998 122 of 128 significands never decay, since x * "
                                   "0.998 rounds back to x" +
                                   all});
  EXPECT_EQ(second("0.997"), Texts{line +
                                   "0.997 38 of 128 significands never decay, since x * "
                                   "0.997 rounds back to x" +
                                   all});
  EXPECT_EQ(second("0.996"), Texts{});
  EXPECT_EQ(second("0.95"), Texts{});
  EXPECT_EQ(second("1"), Texts{});
}

TEST(Lint, StepsAndDecayOfWeights) {
  EXPECT_EQ(
      LintOf(Titan("lr = 1e-5\nbeta2 = 0.95\nweight_decay = 0.1\n")),
      (Texts{"weights are bf16 without a float32 copy: a step of the learning rate, 1e-05, moves "
             "no weight above 2^-8",
             "weights are bf16 without a float32 copy: weight decay alone moves no weight, since w "
             "* (1 - lr * weight_decay) = w * (1 - 1e-06) rounds back to w"}));
  // Adam couples: its decay is part of the gradient.
  EXPECT_EQ(LintOf(Titan("name = \"Adam\"\nlr = 0.5\nweight_decay = 1e-6\n")), Texts{});
  EXPECT_EQ(LintOf(Titan("lr = 0.5\nweight_decay = 0.1\n")), Texts{});
  EXPECT_EQ(LintOf(Titan("lr = 0.002\nweight_decay = 0\n")), Texts{});
}

TEST(Lint, AFileThatSaysNoFormatGetsACondition) {
  const std::string arguments =
      "per_device_train_batch_size: 1\nlearning_rate: 2.0e-5\nbf16: true\n";
  const Texts notes = LintOf(arguments);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0],
            "if the second moment is bf16: at beta2 0.999 it never decays, since x * 0.999 rounds "
            "back to x; at 0.996 all decay");
  EXPECT_EQ(notes[1],
            "if weights are bf16 without a float32 copy: a step of the learning rate, 2e-05, moves "
            "no weight above 2^-7");
  EXPECT_EQ(LintOf(arguments + "torch_dtype: bfloat16\n"), notes);
  for (const std::string line : {"torch_dtype: float32\n", "lora_r: 8\n", "fsdp: full_shard\n"}) {
    EXPECT_EQ(LintOf(arguments + line), Texts{}) << line;
  }
  // The states of other optimizers have types of their own.
  EXPECT_EQ(LintOf(arguments + "optim: adamw_bnb_8bit\n"), Texts{});
  EXPECT_EQ(LintOf("per_device_train_batch_size: 1\nfp16: true\nlearning_rate: 1e-6\n"), Texts{});
}

TEST(Lint, FineConfigurationsGetNoLine) {
  EXPECT_EQ(LintOf("{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}, "
                   "\"optimizer\": {\"type\": \"AdamW\"}}"),
            Texts{});
  EXPECT_EQ(LintOf("p.py --num-layers 2 --hidden-size 8 --lr 1e-5 --bf16"), Texts{});
}

TEST(Lint, EpsilonThatFp16RoundsToZero) {
  const std::string arguments =
      "per_device_train_batch_size: 1\nbf16: false\ndtype: float16\nlearning_rate: 1.0\n";
  const auto eps = [&](const std::string& value) {
    Texts found;
    for (const std::string& note : LintOf(arguments + "adam_epsilon: " + value + "\n")) {
      if (note.find("eps") != note.npos) found.push_back(note);
    }
    return found;
  };
  const std::string line = "if weights are fp16 without a float32 copy: eps ";
  EXPECT_EQ(
      eps("1.0e-8"),
      Texts{line + "1e-08 rounds to 0 in fp16, so that torch.optim without fused=True divides "
                   "by 0 where the second moment is 0"});
  EXPECT_EQ(eps("2.9e-8").size(), 1u);  // half the least value is 2^-25
  EXPECT_EQ(eps("3.0e-8"), Texts{});
}

// The Model Zoo computes with rounded copies of float32 weights.
TEST(Lint, NothingOfCerebrasOptimizers) {
  for (const std::string type : {"bfloat16", "cbfloat16", "float16"}) {
    EXPECT_EQ(LintOf("trainer: {init: {precision: {fp16_type: " + type +
                     ", loss_scaling_factor: dynamic}, optimizer: {AdamW: {lr: 1.0e-5, "
                     "weight_decay: 0.1}}}}\n"),
              Texts{})
        << type;
  }
}

TEST(Lint, OfVerlWithFsdp) {
  const auto notes = [](const std::string& engine) {
    return LintOf("actor_rollout_ref:\n  actor: {fsdp_config: {" + engine +
                  "}, optim: {lr: 1.0e-6}}\n");
  };
  EXPECT_EQ(notes(""), Texts{});
  const Texts pure = notes("model_dtype: bf16");
  ASSERT_EQ(pure.size(), 3u);
  EXPECT_EQ(pure[0].find("the second moment is bf16: at beta2 0.999 it never decays"), 0u);
  EXPECT_EQ(pure[1],
            "weights are bf16 without a float32 copy: a step of the learning rate, 1e-06, moves no "
            "weight above 2^-11");
}

// The types that PyTorch's MixedPrecision names, in any stack's file.
TEST(Lint, TypesOfFsdp) {
  const auto notes = [](const std::string& types) {
    return LintOf(
        "trainer:\n  max_steps: 1\n  precision: bf16-mixed\n  strategy:\n    class_path: "
        "FSDPStrategy\n    init_args: {mixed_precision: {" +
        types + "}}\n");
  };
  const std::string path = "trainer.strategy.init_args.mixed_precision.";
  EXPECT_EQ(notes("param_dtype: torch.bfloat16, reduce_dtype: torch.bfloat16, buffer_dtype: "
                  "torch.float16"),
            (Texts{"if gradients of several ranks are summed in " + path +
                       "reduce_dtype bf16: each addition rounds to 8 significant bits (dlsim "
                       "accumulate shows the error)",
                   "if a buffer holds positions or counts: " + path +
                       "buffer_dtype fp16 holds every integer only up to 2048"}));
  EXPECT_EQ(notes("param_dtype: torch.bfloat16, reduce_dtype: torch.float32"), Texts{});
}

TEST(Lint, LossScales) {
  const auto notes = [](const std::string& scaler) {
    return LintOf("dtype = \"float16\"\n[torch.amp.GradScaler]\n" + scaler + "\n");
  };
  EXPECT_EQ(notes("init_scale = 65536.0"), Texts{});
  EXPECT_EQ(notes("init_scale = 1e39"),
            Texts{"if the scale is held in fp32: init_scale 1e+39 is infinite there"});
  EXPECT_EQ(notes("init_scale = 1e-46"),
            Texts{"if the scale is held in fp32: init_scale 1e-46 rounds to 0 there"});
  EXPECT_EQ(LintOf("[apex.amp]\nopt_level = \"O2\"\nmin_loss_scale = 131072.0\n"),
            Texts{"if the loss is multiplied in fp16: min_loss_scale 2^17 is infinite there, at "
                  "every step"});
  EXPECT_EQ(LintOf("[apex.amp]\nopt_level = \"O2\"\nmin_loss_scale = 128.0\n"), Texts{});
}

TEST(Lint, ConstantsOfMasksAndTargets) {
  const std::string fp16 = Trainer({"fp16_type: float16"});
  EXPECT_EQ(LintOf(fp16 + "model: {attn_mask_value: -1e9}\n"),
            Texts{"if model.attn_mask_value is held in fp16: -1e+09 is -inf there, and a row that "
                  "is masked whole becomes NaN"});
  EXPECT_EQ(LintOf(fp16 + "model: {attn_mask_value: -65504}\n"), Texts{});
  EXPECT_EQ(LintOf(fp16 + "model: {mask_value: -1e999}\n"), Texts{});  // no number at all
  EXPECT_EQ(LintOf(Trainer({"fp16_type: bfloat16"}) + "model: {attn_mask_value: -1e9}\n"), Texts{});
  const std::string bf16 = "per_device_train_batch_size: 1\nbf16: true\nadam_beta2: 0.95\n";
  EXPECT_EQ(LintOf(bf16 + "label_smoothing_factor: 0.001\n"),
            Texts{"if targets are held in bf16: label_smoothing_factor 0.001 does nothing to the "
                  "right class, since 1 - 0.001 rounds to 1"});
  EXPECT_EQ(LintOf(bf16 + "label_smoothing_factor: 0.1\n"), Texts{});
}

}  // namespace
}  // namespace dlsim::sim
