// SPDX-License-Identifier: Apache-2.0
// Two training configurations, side by side in one replay.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

class ConfigCompare : public testing::Test {
 protected:
  std::string Zero(const std::string& name, int power) {
    return dir_.Write(
        name, "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": " + std::to_string(power) +
                  "}, \"zero_optimization\": {\"stage\": 1}, "
                  "\"gradient_clipping\": 1.0}");
  }

  Arguments Replay(const Arguments& more) const {
    Arguments arguments = {"replay", kSingle, "--config", a_, "--config", b_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TempDir dir_;
  const std::string a_ = Zero("before.json", 4), b_ = Zero("after.json", 20);
};

TEST_F(ConfigCompare, EachFileHasTheRunsThatItHasAlone) {
  const nlohmann::json both = SucceedJson(Replay({"--quiet", "--json", "-"}));
  ASSERT_EQ(both["runs"].size(), 2u);
  const std::string files[] = {a_, b_}, names[] = {"before.json", "after.json"};
  for (size_t i = 0; i < 2; ++i) {
    const nlohmann::json alone =
        SucceedJson({"replay", kSingle, "--config", files[i], "--quiet", "--json", "-"});
    nlohmann::json run = both["runs"][i];
    EXPECT_EQ(run["config"], names[i]);
    EXPECT_EQ(both["options"]["configs"][i]["file"], files[i]);
    EXPECT_EQ(both["options"]["configs"][i]["name"], names[i]);
    EXPECT_EQ(both["options"]["configs"][i]["max_gradient_norm"], 1.0);
    EXPECT_EQ(both["verdict"]["paths"][i]["config"], names[i]);
    run.erase("config");
    EXPECT_EQ(run, alone["runs"][0]);
  }
}

TEST_F(ConfigCompare, TheReportNamesTheFiles) {
  const std::string report = Succeed(Replay({}));
  for (const char* words : {"  config format policy", "\n  before.json fp16 deepspeed  ",
                            "\n  after.json fp16 deepspeed   ", "policy: before.json: deepspeed (",
                            "A/a before.json  B/b after.json"}) {
    EXPECT_NE(report.find(words), std::string::npos) << words << "\n" << report;
  }
}

TEST_F(ConfigCompare, CsvHasAColumnForTheFile) {
  const std::vector<std::string> rows = Lines(Succeed(Replay({"--quiet", "--csv", "-"})));
  EXPECT_TRUE(rows.front().ends_with(",config")) << rows.front();
  EXPECT_TRUE(rows[1].ends_with(",before.json")) << rows[1];
  EXPECT_TRUE(rows.back().ends_with(",after.json")) << rows.back();
}

TEST_F(ConfigCompare, AnExpectationMayBeAboutOneFile) {
  Succeed(Replay({"--quiet", "--expect", "before.json/*:max_scale<=16"}));
  const CommandResult result =
      RunCommand(Replay({"--quiet", "--expect", "after.json/*:max_scale<=16"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("after.json/fp16/deepspeed: max_scale is 1048576"), std::string::npos)
      << result.err;
}

TEST_F(ConfigCompare, FilesOfOneNameAreDistinguishedByTheirPaths) {
  std::filesystem::create_directory(dir_.path() + "/other");
  const std::string other = Zero("other/before.json", 8);
  const nlohmann::json both =
      SucceedJson({"replay", kSingle, "--config", a_, "--config", other, "--quiet", "--json", "-"});
  EXPECT_EQ(both["runs"][0]["config"], a_);
  EXPECT_EQ(both["runs"][1]["config"], other);
}

TEST_F(ConfigCompare, OtherCommandsTakeOneFile) {
  for (const Arguments& command :
       {Arguments{"sweep", kSingle}, {"tune", kSingle}, {"scaler", "--steps", "1"}}) {
    Arguments arguments = command;
    arguments.insert(arguments.end(), {"--config", a_, "--config", b_});
    ExpectFailure(arguments, 2,
                  {"--config: several files, expected one; dlsim replay compares several, got 2"});
  }
  ExpectFailure({"replay", kSingle, "--config", a_, "--config", a_}, 2, {"is given twice"});
}

TEST_F(ConfigCompare, FilesThatSumDifferentNumbersOfStepsAreRefused) {
  const std::string one = dir_.Write("one.toml", "policy = \"torch\"\n");
  const std::string two = dir_.Write("two.toml", "policy = \"torch\"\ngrad-accum-steps = 2\n");
  ExpectFailure({"replay", kSingle, "--config", one, "--config", two}, 2,
                {"files that sum different numbers of steps cannot be compared"});
}

}  // namespace
}  // namespace dlsim
