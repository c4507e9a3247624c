// SPDX-License-Identifier: Apache-2.0
// dlsim updates on written probes: the report, files and errors (docs/updates.md).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "dlsim/probe.h"
#include "tests/support/run_command.h"

namespace dlsim {
namespace {

using nlohmann::json;

// Weights of 0.05 that AdamW moves by 1e-5 a step, always in the same direction: bf16 holds nothing
// between 0.05 and 0.0502.
class FineTuning {
 public:
  explicit FineTuning(const std::string& optimizer = "adamw", int64_t steps = 100,
                      std::map<std::string, double> settings = {}) {
    settings.insert({{"lr", 1e-5}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
    ProbeHead head;
    head.elements = 4096;
    ProbeTensor& tensor = head.tensors.emplace_back();
    tensor.name = "head.weight";
    tensor.shape = {4, 16};
    tensor.count = 64;
    ProbeWriter writer(path(), head, ProbeWriter::Existing::kReplace);
    writer.AddValues({std::vector<float>(64, 0.05f), {}});
    std::mt19937 random(1);
    std::normal_distribution<float> normal(1, 0.1f);
    for (int64_t number = 1; number <= steps; ++number) {
      ProbeStep step;
      step.step = number;
      step.groups = {{optimizer, settings}};
      step.group_of = {0};
      step.updated = {true};
      for (int i = 0; i < 64; ++i) step.gradients.push_back(normal(random));
      writer.AddStep(step);
    }
    writer.Close();
  }
  std::string path() const { return dir_.path() + "/probe.dlprobe"; }

 private:
  TempDir dir_;
};

const json& RunNamed(const json& document, const std::string& name) {
  for (const json& run : document["runs"]) {
    if (run["name"] == name) return run;
  }
  ADD_FAILURE() << "no run " << name;
  return document["runs"][0];
}

TEST(UpdatesCommand, WarnsOfLostUpdatesAndNamesWhatMendsIt) {
  const FineTuning probe;
  const CommandResult result = RunCommand({"updates", probe.path()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("bf16 drifts: "), 0u) << result.out;
  EXPECT_NE(result.out.find("of the updates are lost (first at step 1,\n  head.weight)"),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("float32 master weights would prevent this."), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("Followed: 64 of 64 elements in 1 tensor, 100 updates of adamw"),
            std::string::npos)
      << result.out;
}

TEST(UpdatesCommand, JsonHasAllRuns) {
  const FineTuning probe;
  const json document = SucceedJson({"updates", probe.path(), "--json", "-"});
  EXPECT_EQ(document["schema"], "dlsim.updates/1");
  EXPECT_EQ(document["probe"]["updates"], 100);
  const json& pure = RunNamed(document, "bf16");
  EXPECT_EQ(pure["verdict"], "drifts");
  EXPECT_EQ(pure["lost"], pure["updates"]);
  EXPECT_NEAR(pure["drift"].get<double>(), 1, 0.3);
  EXPECT_EQ(RunNamed(document, "bf16 + kahan")["verdict"], "sound");
  EXPECT_EQ(RunNamed(document, "fp32 master, bf16 states")["verdict"], "sound");
  EXPECT_EQ(RunNamed(document, "fp32 master, bf16 states")["lost"], 0);
  const json asked = SucceedJson(
      {"updates", probe.path(), "--weights", "fp32", "--states", "bf16", "--json", "-"});
  EXPECT_EQ(asked["runs"][0]["name"], "fp32, bf16 states");
  EXPECT_EQ(asked["runs"][0]["verdict"], "sound");
  const json faster =
      SucceedJson({"updates", probe.path(), "--weights", "bf16", "--lr", "0.01", "--json", "-"});
  EXPECT_EQ(faster["runs"][0]["verdict"], "sound");
  EXPECT_EQ(faster["options"]["settings"]["lr"], 0.01);
}

// The kernel of the training comes first, the other one after it.
TEST(UpdatesCommand, TheKernelIsTheRecordedOne) {
  const FineTuning fused("adamw", 3, {{"fused", 1}}), plain("adamw", 3, {{"fused", 0}});
  const auto first_runs = [](const FineTuning& probe) {
    const json document = SucceedJson({"updates", probe.path(), "--json", "-"});
    return document["runs"][0]["name"].get<std::string>() + "; " +
           document["runs"][1]["name"].get<std::string>();
  };
  EXPECT_EQ(first_runs(fused), "bf16, fused; bf16");
  EXPECT_EQ(first_runs(plain), "bf16; bf16, fused");
  const auto asked = [&](const Arguments& more) {
    Arguments all = {"updates", fused.path(), "--weights", "fp16", "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    return SucceedJson(all)["runs"][0]["kernel"].get<std::string>();
  };
  EXPECT_EQ(asked({}), "fused");
  EXPECT_EQ(asked({"--kernel", "foreach"}), "foreach");
}

// An expectation is about the run that is asked for; one that may fix it is named.
// FineTuning has a matrix.
TEST(UpdatesCommand, SaysWhatIsNotComparedWithPyTorch) {
  const auto last_line = [](const std::string& optimizer, std::map<std::string, double> settings) {
    const FineTuning probe(optimizer, 2, std::move(settings));
    const json document = SucceedJson({"updates", probe.path(), "--json", "-"});
    return document["lines"].back().get<std::string>();
  };
  const std::string capturable = "note: kernels with capturable=True";
  EXPECT_EQ(last_line("adam", {{"cuda", 1}, {"capturable", 1}}).find(capturable), 0u);
  EXPECT_NE(last_line("adam", {{"cuda", 1}, {"capturable", 0}}).find(capturable), 0u);
  EXPECT_NE(last_line("adam", {{"capturable", 1}}).find(capturable), 0u);
  EXPECT_EQ(last_line("adafactor", {}).find("note: Adafactor keeps second moments of rows"), 0u);
}

TEST(UpdatesCommand, ExpectationsAreAboutTheAskedRunOrNamedOnes) {
  const FineTuning probe;
  const auto with = [&](const std::string& expectation) {
    return Arguments{"updates", probe.path(), "--quiet", "--expect", expectation};
  };
  ExpectFailure(with("drift<0.2"), 1, {"bf16: drift is", ", expected drift<0.2"});
  ExpectFailure(with("lost_share<0.01"), 1, {"bf16: lost_share is 1, expected lost_share<0.01"});
  EXPECT_EQ(Succeed(with("fp32 master*: harmed_from==none")), "");
  EXPECT_EQ(Succeed(with("bf16 + kahan: drift<0.2")), "");
  ExpectFailure(with("bf16, fus*: drift<0.2"), 1, {"bf16, fused: drift is"});
  ExpectFailure(with("fp8:drift<1"), 2, {"no such run", "fp32 master, bf16 states", "'fp8'"});
  ExpectFailure(with("lost_shares<1"), 2, {"unknown figure", "lost_share", "second_moment_ratio"});
}

TEST(UpdatesCommand, JsonHasWhatCameOfExpectations) {
  const FineTuning probe;
  const TempDir dir;
  const std::string out = dir.path() + "/out.json";
  const CommandResult result =
      RunCommand({"updates", probe.path(), "--weights", "bf16", "--master", "fp32", "--expect",
                  "lost<1", "--expect", "first_lost!=none", "--json", out});
  EXPECT_EQ(result.exit_code, 1);
  const json document = json::parse(ReadBytes(out));  // is written all the same
  ASSERT_EQ(document["expectations"].size(), 2u);
  EXPECT_EQ(document["expectations"][0]["run"], document["runs"][0]["name"]);
  EXPECT_EQ(document["expectations"][0]["found"], 0);
  EXPECT_EQ(document["expectations"][0]["holds"], true);
  EXPECT_EQ(document["expectations"][1]["found"], nullptr);
  EXPECT_EQ(document["expectations"][1]["holds"], false);
  EXPECT_EQ(document["runs"][0]["lost_share"], 0.0);
}

// Master weights in bf16 are what the optimizer updates; those of Megatron are float32 by default.
TEST(UpdatesCommand, ConfigurationsDecideTheFormats) {
  const FineTuning probe;
  const TempDir dir;
  const std::string deepspeed = dir.path() + "/ds.json", megatron = dir.path() + "/train.sh";
  dir.Write("ds.json", R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,)"
                       R"( "bf16_optimizer_states": true}, "zero_optimization": {"stage": 2}})");
  dir.Write("train.sh",
            "torchrun pretrain_gpt.py --bf16 --use-distributed-optimizer "
            "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16\n");
  const json pure = SucceedJson({"updates", probe.path(), "--config", deepspeed, "--json", "-"});
  EXPECT_EQ(pure["runs"][0]["weights"], "bf16");
  EXPECT_EQ(pure["runs"][0]["master"], "none");
  EXPECT_EQ(pure["runs"][0]["second"], "bf16");
  EXPECT_EQ(pure["runs"][0]["verdict"], "drifts");
  const json aware = SucceedJson({"updates", probe.path(), "--config", megatron, "--json", "-"});
  EXPECT_EQ(aware["runs"][0]["master"], "fp32");
  EXPECT_EQ(aware["runs"][0]["second"], "bf16");
  EXPECT_EQ(aware["runs"][0]["verdict"], "sound");
}

TEST(UpdatesCommand, SaysWhatAConfigurationLeavesOpen) {
  const FineTuning probe;
  const TempDir dir;
  const auto notes = [&](const std::string& options, std::vector<std::string> more = {}) {
    dir.Write("train.sh", "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 " + options);
    std::vector<std::string> arguments = {
        "updates", probe.path(), "--config", dir.path() + "/train.sh", "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<std::string> found;
    const json document = SucceedJson(arguments);
    for (const json& line : document["lines"]) {
      if (line.get<std::string>().find("configuration") != std::string::npos) {
        found.push_back(line);
      }
    }
    return found;
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(notes("--bf16"), Notes{});
  const std::string open = "note: the configuration leaves this open, and the replay assumes: ";
  const std::string aware = "--bf16 --use-precision-aware-optimizer ";
  EXPECT_EQ(notes(aware + "--exp-avg-dtype fp8"), Notes{open + "the first moment in fp32"});
  EXPECT_EQ(notes(aware + "--main-params-dtype fp16 --exp-avg-sq-dtype fp16"),
            Notes{open + "no float32 copy of the weights, the second moment in bf16"});
  EXPECT_EQ(notes(aware + "--exp-avg-dtype fp8", {"--first", "bf16"}), Notes{});
  EXPECT_EQ(
      notes("--loss-scale 1"),
      Notes{"note: the configuration says no format of weights or states: several recipes are "
            "tried"});
}

TEST(UpdatesCommand, WritesARowForEachTensorAndElement) {
  const FineTuning probe;
  const TempDir dir;
  const std::string rows = dir.path() + "/rows.csv", elements = dir.path() + "/elements.csv";
  const CommandResult result =
      RunCommand({"updates", probe.path(), "--weights", "bf16", "--rounding", "sr", "--csv", rows,
                  "--elements", elements, "--quiet"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const std::vector<std::string> lines = Lines(ReadBytes(rows));
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[1].find("bf16 + sr,head.weight,64,"), 0u) << lines[1];
  const std::vector<std::string> of_elements = Lines(ReadBytes(elements));
  EXPECT_EQ(of_elements[0], "run,tensor,index,start,float32,weight,first,second");
  EXPECT_EQ(of_elements[1].find("bf16 + sr,head.weight,0,0.05,0.04"), 0u) << of_elements[1];
  EXPECT_EQ(of_elements.size(), 1 + 64 * (lines.size() - 1));
}

// The sign of a NaN that was computed depends on compiler and processor.
TEST(UpdatesCommand, NanIsWrittenWithoutSign) {
  const TempDir dir;
  const std::string path = dir.path() + "/probe.dlprobe";
  const float nan = std::copysign(std::numeric_limits<float>::quiet_NaN(), -1.0f);
  ProbeHead head;
  head.elements = 4;
  ProbeTensor& tensor = head.tensors.emplace_back();
  tensor.name = "w";
  tensor.shape = {3};
  tensor.count = 3;
  ProbeWriter writer(path, head, ProbeWriter::Existing::kReplace);
  writer.AddValues({{nan, 1, 1}, {}});
  ProbeStep step;
  step.step = 1;
  step.groups = {{"adamw", {{"lr", 1e-3}}}};
  step.group_of = {0};
  step.updated = {true};
  step.gradients = {1, nan, std::numeric_limits<float>::infinity()};  // inf / inf
  writer.AddStep(step);
  writer.Close();
  const std::string out = Succeed({"updates", path, "--weights", "bf16", "--elements", "-"});
  const std::vector<std::string> rows = Lines(out);
  ASSERT_GE(rows.size(), 4u);
  EXPECT_EQ(rows[1].find("bf16,w,0,nan,nan,nan,"), 0u) << rows[1];
  EXPECT_EQ(rows[2].find("bf16,w,1,1,nan,nan,nan,nan"), 0u) << rows[2];
  EXPECT_EQ(rows[3].find("bf16,w,2,1,nan,nan,inf,inf"), 0u) << rows[3];
  EXPECT_EQ(out.find("-nan"), std::string::npos);
}

TEST(UpdatesCommand, MistakesAreOneLine) {
  const FineTuning probe, unknown("rmsprop"), empty("adamw", 0);
  const std::string path = probe.path();
  ExpectFailure({"updates"}, 2, {"PROBE is required"});
  ExpectFailure({"updates", "/nonexistent.dlprobe"}, 3, {"cannot be opened"});
  ExpectFailure({"updates", unknown.path()}, 3, {"cannot be replayed", "--optimizer", "'rmsprop'"});
  ExpectFailure({"updates", empty.path()}, 3, {"no update was recorded"});
  for (const std::string option : {"--weights", "--states", "--first", "--second", "--gradients"}) {
    ExpectFailure({"updates", path, option, "fp61"}, 2,
                  {option + ": unknown name", "expected fp32, fp16, ", "'fp61'"});
  }
  for (const std::string option : {"--lr", "--eps", "--weight-decay", "--momentum"}) {
    ExpectFailure({"updates", path, option, "-0.5"}, 2,
                  {option + ": out of range, expected 0 or more, got -0.5"});
  }
  for (const std::string option : {"--beta1", "--beta2"}) {
    ExpectFailure({"updates", path, option, "1"}, 2, {option + ": out of range", "below 1, got 1"});
  }
  ExpectFailure({"updates", path, "--rounding", "sr"}, 2, {"--rounding", "float32 weights"});
  ExpectFailure({"updates", path, "--rounding", "up"}, 2, {"--rounding", "rne, sr"});
  ExpectFailure({"updates", path, "--master", "fp16"}, 2, {"--master", "fp32 or none"});
  ExpectFailure({"updates", path, "--weights", "bf16", "--states", "fp32", "--kernel", "foreach"},
                2, {"--kernel", "fused"});
  ExpectFailure(
      {"updates", path, "--weights", "bf16", "--rounding", "sr", "--compensation", "kahan"}, 2,
      {"--compensation"});
}

TEST(UpdatesCommand, WhatIsNoProbeSaysWhatIsExpected) {
  const TempDir dir;
  const std::string text = dir.Write("notes.txt", "hello, world\n"), empty = dir.Write("empty", "");
  ExpectFailure({"updates", text}, 3,
                {text + ": is not a probe, expected a .dlprobe", "'hello, w'"});
  ExpectFailure({"updates", empty}, 3, {empty + ": is not a probe, expected a .dlprobe", "got ''"});
  ExpectFailure({"updates", dir.path()}, 3, {dir.path() + ": is a directory, expected a file"});
  ExpectFailure({"updates", "/dev/null"}, 3, {"/dev/null: is not a regular file, expected a file"});
}

}  // namespace
}  // namespace dlsim
