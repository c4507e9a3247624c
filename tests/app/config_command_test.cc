// SPDX-License-Identifier: Apache-2.0
// --config on the command line: what it fills in, what wins over it, and how it fails.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

const std::string kConfigs = DLSIM_TEST_DATA "/config/";
const std::string kZoo = kConfigs + "model_zoo_gpt3.yaml";
const std::string kTorch = kConfigs + "torch_scaler.toml";

TEST(ConfigCommand, ReplayTakesFormatPolicyAndSettings) {
  const json document = SucceedJson({"replay", kSingle, "--config", kZoo, "--json", "-"});
  ASSERT_EQ(document["runs"].size(), 1u);
  const json& run = document["runs"][0];
  EXPECT_EQ(run["format"], "cb16");
  EXPECT_EQ(run["policy"], "cerebras-2.10");
  EXPECT_EQ(run["params"]["init_scale"], 65536.0);
  EXPECT_EQ(run["params"]["steps_per_increase"], 1000);
  EXPECT_EQ(run["params"]["max_loss_scale"], 0x1p31);
  const json& config = document["options"]["config"];
  EXPECT_EQ(config["file"], kZoo);
  EXPECT_EQ(config["kind"], "Model Zoo trainer");
  EXPECT_EQ(config["updates"]["master"], "fp32");
  EXPECT_EQ(config["notes"].size(), 1u);
}

TEST(ConfigCommand, WithoutAFileNothingIsSaid) {
  const json document = SucceedJson({"replay", kSingle, "--format", "fp16", "--json", "-"});
  EXPECT_FALSE(document["options"].contains("config"));
}

TEST(ConfigCommand, TheCommandLineWins) {
  const json set =
      SucceedJson({"replay", kSingle, "--config", kZoo, "--set", "initial_loss_scale=2^10", "--set",
                   "cerebras_pytorch.increment_period=7", "--json", "-"});
  EXPECT_EQ(set["runs"][0]["params"]["init_scale"], 1024.0);
  EXPECT_EQ(set["runs"][0]["params"]["steps_per_increase"], 7);
  EXPECT_EQ(set["runs"][0]["params"]["fp16_type"], "cbfloat16");

  const json format =
      SucceedJson({"replay", kSingle, "--config", kZoo, "--format", "fp16", "--json", "-"});
  EXPECT_EQ(format["runs"][0]["format"], "fp16");
  EXPECT_EQ(format["runs"][0]["params"]["fp16_type"], "cbfloat16");  // as the file says

  // The file's settings belong to its own policy.
  const json policies = SucceedJson({"replay", kSingle, "--config", kZoo, "--policy", "torch",
                                     "--policy", "cerebras_pytorch", "--json", "-"});
  ASSERT_EQ(policies["runs"].size(), 2u);
  EXPECT_EQ(policies["runs"][0]["params"]["init_scale"], 65536.0);
  EXPECT_EQ(policies["runs"][0]["params"]["growth_interval"], 2000);
  EXPECT_EQ(policies["runs"][1]["params"]["steps_per_increase"], 1000);
}

TEST(ConfigCommand, AFileClipsByThePolicysOwnRule) {
  const TempDir dir;
  const std::string file =
      dir.Write("ds.json", R"({"fp16": {"enabled": true}, "gradient_clipping": 1e6})");
  const auto coefficient = [&](const Arguments& policy) {
    Arguments all = {"replay", kSingle, "--config", file, "--format", "bf16", "--json", "-"};
    all.insert(all.end(), policy.begin(), policy.end());
    const json document = SucceedJson(all);
    EXPECT_EQ(document["options"]["max_gradient_norm"], 1e6);
    EXPECT_FALSE(document["options"].contains("clip_rule"));
    return document["runs"][0]["steps"][0]["clip_coefficient"].get<double>();
  };
  EXPECT_EQ(coefficient({}), 1.0);
  EXPECT_EQ(coefficient({"--policy", "fairseq"}), 1.0);
  EXPECT_NEAR(coefficient({"--policy", "tf"}), 1.0, 1e-6);
}

TEST(ConfigCommand, GivenAccumulationWinsEvenIfItIsOne) {
  const TempDir dir;
  const std::string file =
      dir.Write("a.toml", "format = \"fp16\"\npolicy = \"torch\"\ngrad-accum-steps = 3\n");
  const auto steps = [&](const Arguments& more) {
    Arguments all = {"replay", kSingle, "--config", file, "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    return SucceedJson(all)["runs"][0]["steps"].size();
  };
  EXPECT_EQ(steps({}), 4u);  // of 13 recorded
  EXPECT_EQ(steps({"--grad-accum-steps", "1"}), 13u);
  EXPECT_EQ(steps({"--grad-accum-steps", "2"}), 6u);
}

TEST(ConfigCommand, ReportsNameTheFileAndItsNotes) {
  const std::string report = Succeed({"replay", kSingle, "--config", kZoo});
  EXPECT_NE(report.find("\nconfig: " + kZoo +
                        " (Model Zoo trainer)\nnote: precision_opt_level has no effect on a "
                        "replay\n"),
            std::string::npos)
      << report;
  const std::string scaler = Succeed({"scaler", "--config", kTorch, "--steps", "3"});
  EXPECT_EQ(scaler.find("config: " + kTorch +
                        " (torch GradScaler)\nnote: training accumulates 16 micro-steps"),
            0u)
      << scaler;
  EXPECT_NE(scaler.find("\npolicy: torch\n"), std::string::npos) << scaler;
}

TEST(ConfigCommand, ScalerTakesPolicyFormatAndSettings) {
  const json zoo = SucceedJson({"scaler", "--config", kZoo, "--steps", "2", "--json", "-"});
  EXPECT_EQ(zoo["policy"], "cerebras-2.10");
  EXPECT_EQ(zoo["params"]["max_loss_scale"], 0x1p31);
  EXPECT_EQ(zoo["config"]["kind"], "Model Zoo trainer");
  const json set = SucceedJson({"scaler", "--config", kTorch, "--set", "init_scale=4", "--steps",
                                "2", "--overflow-at", "0", "--json", "-"});
  EXPECT_EQ(set["params"]["init_scale"], 4.0);
  EXPECT_EQ(set["params"]["backoff_factor"], 0.25);
  const json other = SucceedJson(
      {"scaler", "--config", kTorch, "--policy", "static", "--steps", "2", "--json", "-"});
  EXPECT_EQ(other["params"]["loss_scale"], 1.0);
}

TEST(ConfigCommand, SweepsVaryAroundTheFile) {
  const json document =
      SucceedJson({"sweep", kSingle, "--config", kZoo, "--vary", "initial_loss_scale=2^10,2^12",
                   "--set", "min_loss_scale=2", "--json", "-"});
  ASSERT_EQ(document["runs"].size(), 2u);
  for (const json& run : document["runs"]) {
    EXPECT_EQ(run["format"], "cb16");
    EXPECT_EQ(run["policy"], "cerebras-2.10");
    EXPECT_EQ(run["params"]["steps_per_increase"], 1000);  // of the file
    EXPECT_EQ(run["params"]["min_loss_scale"], 2.0);
  }
  const std::set<double> init = {document["runs"][0]["params"]["init_scale"],
                                 document["runs"][1]["params"]["init_scale"]};
  EXPECT_EQ(init, (std::set<double>{1024, 4096}));
  const json& config = document["options"]["config"];
  EXPECT_EQ(config["kind"], "Model Zoo trainer");
  EXPECT_EQ(config["notes"].back(), "gradients are not clipped here: dlsim replay clips");
  // Another policy does not get the file's settings.
  const json torch =
      SucceedJson({"sweep", kSingle, "--config", kZoo, "--policy", "torch", "--json", "-"});
  EXPECT_EQ(torch["runs"][0]["params"]["init_scale"], 65536.0);
  EXPECT_EQ(torch["runs"][0]["format"], "cb16");
}

TEST(ConfigCommand, TuneComparesTheFileWithItsRecommendation) {
  const json document = SucceedJson({"tune", kSingle, "--config", kTorch, "--json", "-"});
  ASSERT_EQ(document["formats"].size(), 1u);
  const json& tuning = document["formats"][0];
  EXPECT_EQ(tuning["format"], "fp16");
  EXPECT_EQ(tuning["recommended"]["policy"], "torch");
  EXPECT_EQ(tuning["comparisons"].back()["label"], kTorch);
  EXPECT_EQ(tuning["comparisons"].back()["params"]["backoff_factor"], 0.25);
  EXPECT_EQ(document["config"]["kind"], "torch GradScaler");
  // Without a scale there is nothing to tune: the default policy remains.
  const TempDir dir;
  const std::string bf16 = dir.Write("bf16.json", R"({"bf16": {"enabled": true}})");
  const json scaled = SucceedJson({"tune", kSingle, "--config", bf16, "--json", "-"});
  EXPECT_EQ(scaled["formats"][0]["format"], "bf16");
  EXPECT_EQ(scaled["formats"][0]["recommended"]["policy"], "cerebras-2.10");
  EXPECT_EQ(scaled["formats"][0]["comparisons"].back()["policy"], "deepspeed-fp16-optimizer");
  const std::string report = Succeed({"tune", kSingle, "--config", kTorch, "--details"});
  EXPECT_NE(report.find("config: " + kTorch), std::string::npos) << report;
  EXPECT_NE(report.find("change in " + kTorch), std::string::npos) << report;
}

TEST(ConfigCommand, BackendAndKindAreOptions) {
  const std::string path = kConfigs + "same_path.yaml";
  EXPECT_EQ(SucceedJson({"scaler", "--config", path, "--backend", "gpu", "--steps", "1", "--json",
                         "-"})["policy"],
            "torch");
  EXPECT_EQ(SucceedJson({"scaler", "--config", path, "--steps", "1", "--json", "-"})["policy"],
            "cerebras-2.10");
  EXPECT_EQ(SucceedJson({"scaler", "--config", kConfigs + "model_zoo_old.yaml", "--config-kind",
                         "cerebras-tf", "--steps", "1", "--json", "-"})["policy"],
            "cerebras-tf");
}

TEST(ConfigCommand, BadConfigurationsExitWith2AndUnreadableFilesWith3) {
  const TempDir dir;
  const auto fail = [&](const std::string& text, const Arguments& words) {
    const std::string path = dir.Write("config.yaml", text);
    for (const Arguments& command : {Arguments{"replay", kSingle}, {"scaler", "--steps", "1"}}) {
      Arguments arguments = command;
      arguments.insert(arguments.end(), {"--config", path});
      ExpectFailure(arguments, 2, words);
    }
  };
  fail("a: [", {"config.yaml:", "bad YAML"});
  fail("a: &a [*a]", {"config.yaml:1: bad YAML"});
  fail("a: 1", {"not a known training configuration"});
  fail("trainer: {init: {precision: {max_loss_scale: x}}}",
       {"config.yaml:1: trainer.init.precision.max_loss_scale: wrong type, expected a number, got "
        "'x'"});
  fail("trainer: {init: {precision: {max_gradient_norm: 1.0, max_gradient_value: 1.0}}}",
       {"Gradients can be clipped by norm(=1.0) or by value(=1.0), but not both."});
  fail("\"a\\nb\\x1b\": 1", {"not a known training configuration"});
  fail("trainer: {init: {precision: {\"a\\nb\": 1}}}", {"a\\x0ab: unknown key"});
  ExpectFailure({"scaler", "--steps", "1", "--config", dir.path() + "/none"}, 3,
                {"cannot be opened"});
  ExpectFailure({"replay", kSingle, "--config", dir.path()}, 3,
                {"is a directory, expected a file"});
}

TEST(ConfigCommand, OptionsThatNeedAFileSaySo) {
  ExpectFailure({"replay", kSingle, "--backend", "gpu"}, 2, {"--backend: needs --config"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "1", "--config-kind", "torch"}, 2,
                {"--config-kind: needs --config"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "1", "--config-version", "0.16"}, 2,
                {"--config-version: needs --config"});
  for (const char* version : {"0.x", "1.2.3.4", "", "1.", "-1"}) {
    ExpectFailure({"scaler", "--steps", "1", "--config", kZoo, "--config-version", version}, 2,
                  {"--config-version"});
  }
  ExpectFailure({"replay", kSingle, "--config", kZoo, "--backend", "tpu"}, 2,
                {"--backend: unknown name", "csx, gpu, cpu"});
  ExpectFailure({"replay", kSingle, "--config", kZoo, "--config-kind", "tourch"}, 2,
                {"--config-kind: unknown name", "(did you mean 'torch'?)"});
  ExpectFailure({"scaler", "--steps", "1", "--config", kConfigs + "dlsim.toml"}, 2,
                {"--config: several policies"});
}

TEST(ConfigCommand, ARefusalOfThePolicyExitsWith2) {
  const TempDir dir;
  const std::string path =
      dir.Write("c.yaml",
                "trainer: {init: {precision: {fp16_type: float16, loss_scaling_factor: dynamic, "
                "min_loss_scale: 2e-14}}}");
  ExpectFailure({"scaler", "--steps", "1", "--config", path}, 2,
                {"ValueError: min_loss_scale too small"});
}

}  // namespace
}  // namespace dlsim
