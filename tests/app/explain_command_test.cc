// SPDX-License-Identifier: Apache-2.0
// The log of a replayed run says what the replay does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

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
