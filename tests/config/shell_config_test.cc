// SPDX-License-Identifier: Apache-2.0
// Command lines and shell scripts as training configurations.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/config_test_util.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

TEST(ShellConfig, ArraysContinuationsAndVariablesAreExpanded) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\n"
      "# a comment with --bf16 and \"a quote\n"
      "WINDOW=${WINDOW:-500}\n"
      "GPT_ARGS=(\n    --num-layers 24\n    --hidden-size 1024   # --bf16\n)\n"
      "export MORE=\"--fp16 --loss-scale-window $WINDOW\"\n"
      "GPT_ARGS+=(--initial-loss-scale=65536)\n"
      "torchrun pretrain_gpt.py \\\n    ${GPT_ARGS[@]} $MORE \\\n    --hysteresis 4 2>&1 | tee "
      "log\n");
  EXPECT_EQ(config.kind, "Megatron-LM");
  EXPECT_EQ(PolicyOf(config), "megatron initial_scale=65536 growth_interval=500 hysteresis=4");
}

// Found by fuzzing: the backslash was neither a line's end nor part of a word, for ever.
TEST(ShellConfig, ABackslashBeforeACarriageReturnAloneIsPartOfAWord) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\npython pretrain.py --num-layers 2 \\\r --hidden-size 4 \\\r\n --fp16\n");
  EXPECT_EQ(PolicyOf(config), "megatron");
}

TEST(ShellConfig, ACommandInAVariableIsRead) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\noptions=\" \\\n  --num-layers 2 \\\n  --hidden-size 4 \\\n  --fp16\"\n"
      "run_cmd=\"python pretrain.py ${options}\"\necho ${run_cmd}\neval ${run_cmd}\n");
  EXPECT_EQ(PolicyOf(config), "megatron");
}

TEST(ShellConfig, HereDocumentsAreNoOptions) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\ncat <<EOT > x.json\n python a.py --bf16\nEOT\n"
      "python pretrain.py --num-layers 2 --hidden-size 4 --fp16\n");
  EXPECT_EQ(config.formats, Texts{"fp16"});
}

TEST(ShellConfig, FairseqsCommandLine) {
  const TrainingConfig config = Interpret(
      "fairseq-train --fp16 data-bin/wmt --arch transformer --criterion cross_entropy "
      "--fp16-init-scale 4 --update-freq 16 --clip-norm 0.1 --distributed-world-size 8 "
      "--threshold-loss-scale 1\n");
  EXPECT_EQ(config.kind, "fairseq");
  EXPECT_EQ(PolicyOf(config), "fairseq init_scale=4 scale_window=128 threshold=1");
  EXPECT_EQ(config.clipping.max_norm, 0.1);
}

TEST(ShellConfig, HuggingFacesCommandLine) {
  const std::string line = "python train.py --model_name_or_path x --output_dir y ";
  EXPECT_EQ(PolicyOf(Interpret(line + "--fp16 True --max-grad-norm 0.5")), "torch");
  EXPECT_EQ(Interpret(line + "--fp16 --max-grad-norm 0.5").clipping.max_norm, 0.5);
  EXPECT_EQ(Interpret(line + "--bf16").formats, Texts{"bf16"});
  ExpectConfigError(line + "--fp16 --deepspeed ds.json",
                    "f:1: deepspeed: no such DeepSpeed file, expected its path from this file or "
                    "from the working directory, got 'ds.json'");
}

// The file may give the run another scaler than its own arguments say.
TEST(ShellConfig, TheFileOfAcceleratesLauncherIsRead) {
  const TempDir dir;
  const std::string launch = "accelerate launch --config_file=" + dir.path() + "/a.yaml ";
  const std::string trainer = launch + "sft.py --output_dir o --learning_rate 1e-4 --fp16 True";
  const std::string diffusers =
      launch + "--mixed_precision=fp16 t.py --pretrained_model_name_or_path x --output_dir o";
  dir.Write("a.yaml",
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\n"
            "deepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 0.5\n");
  for (const std::string& line : {trainer, diffusers}) {
    const TrainingConfig config = Interpret(line + "\n");
    EXPECT_EQ(config.kind, "Accelerate with DeepSpeed");
    EXPECT_EQ(config.formats, Texts{"fp16"});
    EXPECT_EQ(config.clipping.max_norm, 0.5);
  }
  // Without a switch the file's own precision holds.
  EXPECT_EQ(Interpret(launch + "sft.py --model_name_or_path m --output_dir o\n").formats,
            Texts{"bf16"});
  dir.Write("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\n");
  for (const std::string& line : {trainer, diffusers}) {
    EXPECT_EQ(PolicyOf(Interpret(line + "\n")), "torch");
  }
  std::filesystem::remove(dir.path() + "/a.yaml");
  for (const std::string& line : {trainer, diffusers}) {
    EXPECT_THROW(Interpret(line + "\n"), Error);
  }
  for (const std::string options :
       {"--bf16 --output_dir o --learning_rate 1e-4", "--mixed_precision bf16 --output_dir o"}) {
    const TrainingConfig config = Interpret(launch + "t.py " + options + "\n");
    EXPECT_TRUE(HasNote(config, "is not there: if it asks for DeepSpeed")) << options;
  }
}

TEST(ShellConfig, TheDeepSpeedFileOfAcceleratesLauncherIsRead) {
  const TempDir dir;
  dir.Write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  const std::string launch = "accelerate launch --use_deepspeed ";
  const std::string file = "--deepspeed_config_file " + dir.path() + "/ds.json ";
  const TrainingConfig bf16 =
      Interpret(launch + file + "--mixed_precision bf16 t.py --output_dir o\n");
  EXPECT_EQ(bf16.kind, "Accelerate with DeepSpeed");
  EXPECT_TRUE(HasNote(bf16, "a step whose gradients are not finite is skipped"));
  const std::string trainer = "t.py --fp16 --output_dir o --learning_rate 1e-4\n";
  EXPECT_EQ(PolicyOf(Interpret(launch + file + trainer)).substr(0, 10), "deepspeed ");
  ExpectConfigError(launch + trainer,
                    "f:1: use_deepspeed: DeepSpeed scales the loss of this run, expected --config "
                    "with its file");
}

// A file that the script writes may be given in a command that is printed and then run.
TEST(ShellConfig, ADeepSpeedFileOfTheScriptMayStandTwice) {
  const std::string script =
      "#!/bin/bash\nF=./ds.json\ncat <<EOT > $F\n"
      "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10}}\nEOT\n"
      "A=\"--deepspeed --deepspeed_config $F\"\n";
  const std::string run =
      "C=\"x.py --num-layers 2 --hidden-size 4 --fp16 --lr 1 $A\"\necho $C\npython $C\n";
  const std::string more = "if [ \"$R\" = 1 ]; then\n  A=\"$A --zero-reduce-scatter\"\nfi\n";
  for (const std::string& text : {script + run, script + more + run}) {
    const TrainingConfig config = Interpret(text);
    EXPECT_EQ(config.kind, "Megatron-LM with DeepSpeed") << text;
    EXPECT_EQ(PolicyOf(config),
              "deepspeed-fp16-optimizer init_scale=2^10 scale_window=1000 min_scale=1")
        << text;
  }
  ExpectConfigError(script + "if [ $R = 1 ]; then\n  A=\"\"\nfi\n" + run,
                    "f:8: 'A' depends on how the script is run, expected a script without that "
                    "choice, or the command line itself");
}

TEST(ShellConfig, PatternsOfACaseAreNoOptions) {
  const TrainingConfig config = Interpret(
      "#!/bin/bash\nwhile [ $# -gt 0 ]; do\n  case $1 in\n    --fp16 )\n      shift\n      ;;\n"
      "    --deepspeed )\n      shift\n      ;;\n  esac\ndone\n"
      "python x.py --output_dir o --learning_rate 1e-4 --bf16\n");
  EXPECT_EQ(config.formats, Texts{"bf16"});
}

TEST(ShellConfig, WhatIsNoTrainingOfTheStackIsRefused) {
  const std::string model = "python g.py --num-layers 2 --hidden-size 4 --fp16 ";
  const std::string problem =
      "f:1: a run without training, expected --lr with --train-iters or --train-samples";
  ExpectConfigError(model + "--load c --micro-batch-size 2 --top_p 0.9\n", problem);
  ExpectConfigError(model + "--mode inference\n", problem);
  EXPECT_EQ(PolicyOf(Interpret(model + "--load c --lr 1e-4\n")), "megatron");
  // A training loop of its own, and a program that generates.
  for (const std::string options :
       {"--output_dir o --learning_rate 1e-4 --fp16 --train_batch_size 8",
        "--model_name_or_path gpt2 --fp16"}) {
    EXPECT_THROW(Interpret("python run.py " + options + "\n"), Error) << options;
  }
  ExpectConfigError("python run.py --train_batch_size 8 --deepspeed --deepspeed_config ds.json\n",
                    "f:1: deepspeed: DeepSpeed scales the loss of this run, expected --config with "
                    "the DeepSpeed file 'ds.json'");
}

// Branches that leave the same options decide nothing; else only running the script would tell.
TEST(ShellConfig, BranchesDecideOnlyWhereTheyDiffer) {
  const std::string model = "python x.py --num-layers 2 --hidden-size 4 ";
  const auto script = [&](const std::string& first, const std::string& then,
                          const std::string& otherwise, const std::string& last) {
    return "#!/bin/bash\n" + first + "\nif [ $A = 1 ]; then\n  " + then + "\n" +
           (otherwise.empty() ? "" : "else\n  " + otherwise + "\n") + "fi\n" + model + last + "\n";
  };
  for (const std::string& same : {
           script("A=(--bf16)", "A+=(--seed 3)", "", "${A[@]}"),
           script("A='--bf16'", "A=\"$A --seed 3\"", "A=\"$A --seed 4\"", "$A"),
           script("", "A=(--bf16 --seed 3)", "A=(--bf16)", "${A[@]}"),
           script("A=(--bf16)", "A+=(--seed 3)", "A+=(--seed 4)", "${A[@]}"),
           script("", "S=1", "S=2", "--bf16 --seed $S"),
       }) {
    EXPECT_EQ(Interpret(same).formats, Texts{"bf16"}) << same;
  }
  const std::string problem =
      " depends on how the script is run, expected a script without that "
      "choice, or the command line itself";
  ExpectConfigError(script("A=(--seed 3)", "A+=(--fp16)", "A+=(--bf16)", "${A[@]}"),
                    "f:4: 'A'" + problem);
  ExpectConfigError(script("A=(--fp16)", "A+=(--hysteresis 3)", "", "${A[@]}"),
                    "f:4: 'A'" + problem);
  // A number has no name that tells what it is for.
  ExpectConfigError(script("", "S=1024", "S=2048", "--fp16 --loss-scale $S"),
                    "f:8: '--loss-scale'" + problem);
  ExpectConfigError(
      "#!/bin/bash\nS=1024\n[ $A = 1 ] && S=2048\n" + model + "--fp16 --loss-scale $S\n",
      "f:4: '--loss-scale'" + problem);
  ExpectConfigError("#!/bin/bash\ncase $A in\n  a) S=1024 ;;\n  b) S=2048 ;;\nesac\n" + model +
                        "--fp16 --loss-scale $S\n",
                    "f:6: '--loss-scale'" + problem);
}

// The script is read, not run.
TEST(ShellConfig, WhatTheScriptDecidesIsRefused) {
  const std::string model = "python x.py --num-layers 2 --hidden-size 4 ";
  const std::string fix =
      " depends on how the script is run, expected a script without that choice, or the command "
      "line itself";
  ExpectConfigError("#!/bin/sh\nif [ $A = 1 ]; then\n  P=--fp16\nfi\n" + model + "$P\n",
                    "f:3: 'P'" + fix);
  ExpectConfigError("#!/bin/sh\n[ $A = 1 ] && P=--fp16\n" + model + "$P\n", "f:2: 'P'" + fix);
  ExpectConfigError(model + "--fp16 --initial-loss-scale $1\n",
                    "f:1: '--initial-loss-scale'" + fix);
  ExpectConfigError(model + "--fp16 --hysteresis 2\n" + model + "--fp16 --hysteresis 3\n",
                    "f:2: hysteresis: duplicate key 'hysteresis'");
  ExpectConfigError("#!/bin/sh\necho nothing\n",
                    "f: no options of a training program, expected --NAME VALUE ...");
}

}  // namespace
}  // namespace dlsim::sim
