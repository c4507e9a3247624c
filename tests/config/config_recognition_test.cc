// SPDX-License-Identifier: Apache-2.0
// Which stack a file is of: by marks that no other stack has; one common key never decides.
#include <gtest/gtest.h>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

TEST(ConfigRecognition, AccelerateAndKohyaByMixedPrecision) {
  const TrainingConfig launch = Interpret(
      "accelerate launch --mixed_precision=fp16 train.py --pretrained_model_name_or_path=m "
      "--output_dir=o --learning_rate=1e-4 --gradient_accumulation_steps=2\n");
  EXPECT_EQ(launch.kind, "Accelerate");
  EXPECT_EQ(PolicyOf(launch), "torch");
  EXPECT_EQ(launch.clipping.max_norm, 1.0);
  const TrainingConfig kohya = Interpret(
      "[model]\npretrained_model_name_or_path = 'm'\n[training]\nmixed_precision = 'bf16'\n");
  EXPECT_EQ(kohya.formats, Texts{"bf16"});
  EXPECT_EQ(Interpret("python x.py --model_name_or_path m --output_dir o --mixed_precision fp16 "
                      "--bf16\n")
                .kind,
            "Hugging Face TrainingArguments");
}

TEST(ConfigRecognition, OneCommonKeyIsNoStack) {
  for (const char* text :
       {"gradient_accumulation_steps: 8\ndtype: bf16\n", "fp16: true\n", "trainer: {a: 1}\n",
        "policy: {type: a}\n", "output_dir: o\nlearning_rate: 1\n", "train_batch_size: 8\n"}) {
    try {
      Interpret(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("not a known training configuration"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(ConfigRecognition, StacksThatAreNotReadAreNamedWithTheirOptions) {
  const auto refuses = [](std::string_view text, const std::string& stack,
                          const std::string& options) {
    ExpectConfigError(
        text, "f:1: a configuration of " + stack + ", which is not read, expected " + options);
  };
  refuses("model: {_component_: a}\ndtype: bf16\n", "torchtune", "--policy static --format bf16");
  refuses("trainer: {dtype: float16, fp16_loss_scale: [128.0, 0.0001]}\n", "fairseq2",
          "--policy torch --format fp16");
  refuses("policy: {type: act}\ndataset: {repo_id: x}\n", "LeRobot", "--policy torch");
  refuses("per_device_train_batch_size: 4\nfp16: true\nscale_loss: 1024\n", "PaddleNLP",
          "--policy paddle --format fp16 --set init_loss_scaling=1024");
  refuses("per_device_train_batch_size: 4\nfp16: true\ntensor_parallel_degree: 2\n", "PaddleNLP",
          "--policy paddle --format fp16 --set init_loss_scaling=32768");
  refuses("swift sft --model m --tuner_type lora --torch_dtype float32\n", "ms-swift",
          "--policy torch --format fp16");
  refuses("swift sft --model m --tuner_type lora --torch_dtype float16 --deepspeed zero2\n",
          "ms-swift", "--policy deepspeed --format fp16");
}

TEST(ConfigRecognition, AScriptsOwnDeepSpeedFileIsRead) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\nF=./ds.$JOB.json\ncat <<EOT > $F\n"
      "{\"zero_optimization\": {\"stage\": 1}, \"fp16\": {\"enabled\": true, "
      "\"initial_scale_power\": 12}}\nEOT\n"
      "python p.py --num-layers 2 --hidden-size 8 --fp16 --deepspeed --deepspeed_config $F\n");
  EXPECT_EQ(config.kind, "Megatron-LM with DeepSpeed");
  EXPECT_NE(PolicyOf(config).find("init_scale=2^12"), std::string::npos);
}

TEST(ConfigRecognition, BranchesThatAgreeAreRead) {
  const std::string model = "python t.py --num-layers 2 --hidden-size 8 ";
  EXPECT_EQ(Interpret("#!/bin/sh\nif [ $A ]; then\n  " + model + "--bf16\nelse\n  srun " + model +
                      "--bf16\nfi\n")
                .formats,
            Texts{"bf16"});
  ExpectConfigError(
      "#!/bin/sh\nif [ $A ]; then\n  " + model + "--bf16\nelse\n  " + model + "--fp16\nfi\n",
      "f:3: '--bf16' depends on how the script is run, expected a script without that choice, or "
      "the command line itself");
}

TEST(ConfigRecognition, SwitchesTakeTheTruthWordsOfTransformers) {
  const std::string line = "python t.py --output_dir o --learning_rate 1 ";
  EXPECT_EQ(Interpret(line + "--bf16 0").formats, Texts{});
  EXPECT_EQ(Interpret(line + "--fp16 --bf16 no").formats, Texts{"fp16"});
  EXPECT_EQ(Interpret(line + "--fp16 y").formats, Texts{"fp16"});
}

TEST(ConfigRecognition, AnUnknownValueNeverShowsTheReadersMark) {
  const std::string line = "python t.py --model_name_or_path m --output_dir o --fp16 ";
  EXPECT_EQ(PolicyOf(Interpret(line + "--gradient_accumulation_steps $(expr 16 / $N)\n")), "torch");
  ExpectConfigError(line + "--max_grad_norm `cat x`\n",
                    "f:1: max_grad_norm: depends on how the script is run, expected the command "
                    "line itself");
}

}  // namespace
}  // namespace dlsim::sim
