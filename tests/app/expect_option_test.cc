// SPDX-License-Identifier: Apache-2.0
// dlsim replay --expect: exit codes, lines, JSON (docs/gates.md).
#include <gtest/gtest.h>

#include <set>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

Arguments Replay(const Arguments& more) {
  Arguments arguments = {"replay",   kSingle, "--format", "fp16",
                         "--policy", "torch", "--policy", "cerebras-2.10"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(ExpectOption, SaysNothingIfAllHolds) {
  const json document = SucceedJson(Replay(
      {"--expect", "skipped_steps<=13", "--expect", "stopped_at_step==none", "--json", "-"}));
  ASSERT_EQ(document["expectations"].size(), 4u);
  for (const json& outcome : document["expectations"]) EXPECT_TRUE(outcome["holds"]);
  EXPECT_EQ(document["expectations"][0]["run"], "fp16/torch");
  EXPECT_EQ(document["expectations"][3]["run"], "fp16/cerebras-2.10");
  EXPECT_EQ(document["expectations"][3]["expression"], "stopped_at_step==none");
  EXPECT_EQ(document["expectations"][3]["found"], nullptr);
}

TEST(ExpectOption, WhatFailsEndsWithOneAndALineEach) {
  const TempDir dir;
  const std::string out = dir.path() + "/out.json";
  const CommandResult result = RunCommand(
      Replay({"--quiet", "--expect", "skipped_steps<1", "--expect", "steps==13", "--json", out}));
  EXPECT_EQ(result.exit_code, 1);
  const json document = json::parse(ReadBytes(out));  // is written all the same
  const std::vector<std::string> lines = Lines(result.err);
  ASSERT_EQ(lines.size(), 2u) << result.err;
  for (size_t i = 0; i < 2; ++i) {
    const json& run = document["runs"][i];
    const json& outcome = document["expectations"][2 * i];
    EXPECT_EQ(outcome["found"], run["summary"]["skipped_steps"]);
    EXPECT_FALSE(outcome["holds"]);
    EXPECT_TRUE(document["expectations"][2 * i + 1]["holds"]);
    EXPECT_EQ(lines[i], "dlsim replay: " + outcome["run"].get<std::string>() +
                            ": skipped_steps is " + run["summary"]["skipped_steps"].dump() +
                            ", expected skipped_steps<1");
  }
}

TEST(ExpectOption, ASubjectChoosesRuns) {
  const json document = SucceedJson(Replay({"--expect", "fp16/tor*:steps>0", "--json", "-"}));
  ASSERT_EQ(document["expectations"].size(), 1u);
  EXPECT_EQ(document["expectations"][0]["run"], "fp16/torch");
  ExpectFailure(Replay({"--expect", "fp16/troch:steps>0"}), 2, {"--expect", "fp16/torch"});
}

TEST(ExpectOption, UnknownFiguresAreRefusedBeforeAnyWork) {
  const TempDir dir;
  const std::string out = dir.path() + "/out.json";
  ExpectFailure(Replay({"--expect", "skiped_steps<3", "--json", out}), 2,
                {"unknown figure", "did you mean 'skipped_steps'?"});
  EXPECT_EQ(ReadBytes(out), "");
  ExpectFailure(Replay({"--expect", "clipped_steps<3"}), 2, {"unknown figure"});
  ExpectFailure(Replay({"--expect", "skipped_steps"}), 2, {"not an expectation"});
}

TEST(ExpectOption, KnowsClippingTheVerdictAndTwins) {
  const json document = SucceedJson(
      Replay({"--max-gradient-norm", "1", "--resume-at", "5", "--expect", "clipped_steps>=0",
              "--expect", "steps_outside_window<=13", "--expect", "steps_inside!=99", "--json", "-",
              "--policy", "static", "--expect", "uncertain_steps==0"}));
  const json& format = document["verdict"]["formats"][0];
  std::set<std::string> of_twin;
  for (const json& outcome : document["expectations"]) {
    if (outcome["expression"] == "steps_outside_window<=13") {
      EXPECT_EQ(outcome["found"], format["steps_outside_window"]);
    }
    if (outcome["run"] == "fp16/torch resumed with nothing") of_twin.insert(outcome["expression"]);
  }
  // It has no path of its own in the verdict.
  EXPECT_EQ(of_twin, (std::set<std::string>{"clipped_steps>=0", "steps_outside_window<=13",
                                            "uncertain_steps==0"}));
}

TEST(ExpectOption, ARefusedPolicyIsWrongUsageAllTheSame) {
  const CommandResult result =
      RunCommand({"replay", kSingle, "--quiet", "--format", "fp16", "--policy", "torch", "--policy",
                  "cerebras-2.10", "--set", "torch.growth_factor=0.5", "--expect",
                  "fp16/cerebras-2.10:steps<0"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
}

TEST(ExpectOption, AnEstimateIsComparedByItsWorseEnd) {
  const TempDir dir;
  const std::string profile = dir.path() + "/run.dlprof";
  Succeed({"profile", kSingle, "-o", profile, "--quiet"});
  const Arguments replay = {"replay",   profile,  "--format", "fp16",
                            "--policy", "static", "--set",    "loss_scale=0x1.8p-3",
                            "--quiet",  "--json", "-"};
  const json summary = SucceedJson(replay)["runs"][0]["summary"];
  ASSERT_TRUE(summary.contains("mean_harm_bracket")) << summary;
  const double low = summary["mean_harm_bracket"][0], high = summary["mean_harm_bracket"][1];
  ASSERT_LT(low, high);
  EXPECT_LE(low, summary["mean_harm"]);
  EXPECT_GE(high, summary["mean_harm"]);
  const auto code = [&](const std::string& expression) {
    Arguments arguments = replay;
    arguments.insert(arguments.end(), {"--expect", expression});
    return RunCommand(arguments).exit_code;
  };
  const std::string middle = json(summary["mean_harm"]).dump();
  EXPECT_EQ(code("mean_harm<=" + json(high).dump()), 0);
  EXPECT_EQ(code("mean_harm<=" + middle), 1);
  EXPECT_EQ(code("mean_harm>=" + json(low).dump()), 0);
  EXPECT_EQ(code("mean_harm>=" + middle), 1);
}

}  // namespace
}  // namespace dlsim
