// SPDX-License-Identifier: Apache-2.0
// The contract of dlsim explain: report, JSON, CSV, errors (docs/explain.md), and that the log of a
// replayed run says what the replay does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

const std::string kLogs = DLSIM_TEST_DATA "/logs/";

TEST(ExplainCommand, AnswersInFourLinesWithin80Columns) {
  const std::pair<const char*, const char*> logs[] = {{"deepspeed-zero.log", "dpsl"},
                                                      {"megatron-steady.log", "dpsl"},
                                                      {"apex-to-zero.log", "dpsl"},
                                                      {"no-policy.csv", "psl"},
                                                      {"megatron-resumed.log", "dpsl"}};
  for (const auto& [name, expected] : logs) {
    SCOPED_TRACE(name);
    std::string starts;
    for (const std::string& line : Lines(Succeed({"explain", kLogs + name}))) {
      EXPECT_LE(line.size(), 80u) << line;
      const bool begins =
          !line.starts_with("  ") && starts.size() < std::string_view(expected).size();
      if (begins) starts += line[0];
    }
    EXPECT_EQ(starts,
              expected);  // diagnosis where a step was skipped, policy, skips, largest gradient
  }
}

TEST(ExplainCommand, JsonHasEveryKey) {
  const json document = SucceedJson({"explain", kLogs + "scale.csv", "--policy", "megatron",
                                     "--set", "initial_scale=2^13", "--json", "-"});
  std::set<std::string> keys;
  for (const auto& [key, value] : document.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"schema", "stack", "format", "counted", "from_start",
                                         "diagnosis", "notes", "summary", "policies", "best_prefix",
                                         "tried", "skips", "not_tried", "undecided", "minimum",
                                         "brackets", "what_if"}));
  EXPECT_EQ(document["schema"], "dlsim.explain/1");
  EXPECT_EQ(document["tried"], 34);
  EXPECT_EQ(document["not_tried"], json::parse(R"(["openseq2seq-logmax", "popart", "adaloss"])"));
  EXPECT_EQ(document["policies"][0]["policy"], "torch");
  EXPECT_EQ(document["policies"][0]["settings"], json::parse(R"(["growth_interval=50"])"));
  EXPECT_EQ(document["policies"][0]["params"]["growth_interval"], 50);
  EXPECT_EQ(document["summary"]["skipped_steps"], 6);
  EXPECT_EQ(document["summary"]["max_scale"], 65536);
  // 65519.996 is the largest float32 that rounds to a finite fp16 number.
  EXPECT_NEAR(document["brackets"][0]["skipped_above"].get<double>(), 65519.996 / 65536, 1e-7);
  EXPECT_EQ(document["what_if"][0]["policy"], "megatron");
  EXPECT_EQ(document["what_if"][0]["uncertain_applied"]["first_scale"], 8192);
}

TEST(ExplainCommand, IsAGate) {
  const std::vector<std::string> gate = {"explain", kLogs + "megatron-divergence.log", "--quiet"};
  const auto with = [&](const std::string& expectation) {
    std::vector<std::string> arguments = gate;
    arguments.insert(arguments.end(), {"--expect", expectation, "--json", "-"});
    return RunCommand(arguments);
  };
  const CommandResult fails = with("divergence_from==none");
  EXPECT_EQ(fails.exit_code, 1);
  EXPECT_EQ(Lines(fails.err).size(), 1u) << fails.err;
  const json outcome = json::parse(fails.out)["expectations"][0];
  EXPECT_EQ(outcome["holds"], false);
  EXPECT_EQ(outcome["found"], json::parse(fails.out)["skips"]["divergence_from"]);
  EXPECT_EQ(with("skipped_steps>0").exit_code, 0);
  EXPECT_EQ(with("skiped_steps>0").exit_code, 2);
  EXPECT_EQ(with("fp16/*: skipped_steps>0").exit_code, 2);
}

TEST(ExplainCommand, CsvIsThePathAndReadsBack) {
  const TempDir dir;
  const std::string path = dir.path() + "/path.csv";
  Succeed({"explain", kLogs + "megatron-steady.log", "--csv", path, "--quiet"});
  const std::vector<std::string> lines = Lines(ReadBytes(path));
  ASSERT_EQ(lines.size(), 81u);
  EXPECT_EQ(lines[0], "step,scale,skipped,line");
  EXPECT_EQ(lines[1], "1,65536,1,1");
  EXPECT_EQ(lines[3], "3,32768,1,3");
  const json first = SucceedJson({"explain", kLogs + "megatron-steady.log", "--json", "-"});
  const json again = SucceedJson({"explain", path, "--json", "-"});
  EXPECT_EQ(again["skips"], first["skips"]);
  EXPECT_EQ(again["brackets"], first["brackets"]);
}

TEST(ExplainCommand, MistakesAreOneLine) {
  ExpectFailure({"explain"}, 2, {"LOG is required"});
  ExpectFailure({"explain", "/nonexistent"}, 3, {"/nonexistent: cannot be read"});
  ExpectFailure({"explain", kLogs + "no-scale.log"}, 3,
                {"no-scale.log: no loss scale found", "DeepSpeed, Apex, Megatron-LM", "CSV"});
  const TempDir logs;
  const std::string nan = logs.Write("nan.log", "iter 20: loss nan, time 1ms\n");
  ExpectFailure({"explain", nan, "--expect", "skipped_steps<=20"}, 3, {"no loss scale found"});
  ExpectFailure({"explain", nan, "--csv", "-"}, 3, {"no loss scale found"});
  ExpectFailure({"explain", nan, "--policy", "torch"}, 2, {"the log prints no loss scale"});
  ExpectFailure({"explain", kLogs + "scale.csv", "--format", "fp61"}, 2, {"did you mean 'fp16'?"});
  ExpectFailure({"explain", kLogs + "scale.csv", "--policy", "adaloss"}, 2,
                {"adaloss uses the gradients themselves", "dlsim replay"});
  ExpectFailure({"explain", kLogs + "scale.csv", "--set", "growth=3"}, 2, {"'growth'"});
  ExpectFailure({"explain", kLogs + "no-policy.csv", "--set", "init_scale=3"}, 2,
                {"no policy reproduces the log", "--policy"});
  ExpectFailure({"explain", kLogs + "apex-warm-up.log", "--policy", "torch"}, 2,
                {"how many steps lie between its messages"});
  const TempDir dir;
  ExpectFailure({"explain", dir.path()}, 3, {dir.path() + ": cannot be read: Is a directory"});
  const std::string bad = dir.path() + "/bad.csv";
  std::ofstream(bad) << "step,scale\n0,65536\n1,many\n";
  ExpectFailure({"explain", bad}, 3, {"bad.csv:3: not a number", "'many'"});
  std::ofstream(bad) << "step,scale\n1,65536\n2,65536\n1700000000,65536\n";
  ExpectFailure({"explain", bad}, 3, {"line 4: step number too far", "at most 10000000"});
}

// The loss scale that a training under this replay would have logged. The trace has some steps of a
// longer training: they are numbered in order.
std::string LogOf(const json& run) {
  std::string text = "step,scale,skipped\n";
  int number = 0;
  for (const json& step : run["steps"]) {
    text += fmt::format("{},{},{}\n", number++, step["scale"].get<double>(),
                        step["skipped"].get<bool>() ? 1 : 0);
  }
  return text;
}

TEST(ExplainCommand, TheLogOfAReplayedTraceSaysWhatTheReplaySays) {
  const TempDir dir;
  const std::string log = dir.path() + "/log.csv";
  for (const char* policy : {"torch", "megatron", "deepspeed", "cerebras-2.10", "fairseq"}) {
    SCOPED_TRACE(policy);
    const json run = SucceedJson(
        {"replay", kSingle, "--format", "fp16", "--policy", policy, "--json", "-"})["runs"][0];
    std::ofstream(log) << LogOf(run);
    const json explained = SucceedJson({"explain", log, "--json", "-"});
    EXPECT_EQ(explained["summary"]["steps"], run["summary"]["steps"]);
    EXPECT_EQ(explained["summary"]["skipped_steps"], run["summary"]["skipped_steps"]);
    EXPECT_EQ(explained["summary"]["min_scale"], run["summary"]["min_scale"]);
    bool found = false;
    for (const json& match : explained["policies"]) {
      if (match["policy"] != policy) continue;
      found = true;
      // What the log tells apart is as it was; the other parameters are the defaults.
      EXPECT_EQ(match["params"], run["params"]);
    }
    EXPECT_TRUE(found);
  }
}

}  // namespace
}  // namespace dlsim
