// SPDX-License-Identifier: Apache-2.0
// dlsim tune on the command line: what it prints can be pasted and replayed, and how it fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/replay/harm.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// What a step of a replay's JSON loses.
double LossOf(const json& step, const Format& format) {
  const json& activations = step["activations"]["mean_harm"];
  const bool parameters_only = activations.is_null();
  const double harm =
      std::max(step["mean_harm"].get<double>(), parameters_only ? 0.0 : activations.get<double>());
  return harm <= sim::HarmLimit({format}, parameters_only) ? 0 : std::min(1.0, harm);
}

// The objective, from the steps of a replay's JSON.
double MeanLoss(const json& run) {
  const Format format = ParseFormat(run["format"].get<std::string>()).format;
  double lost = 0;
  for (const json& step : run["steps"]) {
    const bool applied = !step["skipped"].get<bool>() && step["finite"].get<bool>();
    lost += applied ? LossOf(step, format) : 1.0;
  }
  return lost / static_cast<double>(run["steps"].size());
}

TEST(TuneCommand, TheRecommendationReplaysToItsMeanLoss) {
  const json document = SucceedJson({"tune", kSingle, "--json", "-"});
  EXPECT_EQ(document["schema"], "dlsim.tune/1");
  EXPECT_EQ(document["trace"]["steps"], 13);
  ASSERT_EQ(document["formats"].size(), 3u);
  for (const json& format : document["formats"]) {
    const json& recommended = format["recommended"];
    const std::string policy = recommended["policy"];
    EXPECT_EQ(policy, format["format"] == "fp16" ? "torch" : "cerebras-2.10");
    EXPECT_EQ(recommended["eligible"], true);
    EXPECT_EQ(recommended["errors_of_the_original"], 0);
    Arguments replay = {"replay",   kSingle, "--format", format["format"],
                        "--policy", policy,  "--json",   "-"};
    for (const auto& [key, value] : recommended["params"].items()) {
      replay.insert(replay.end(), {"--set", key + "=" + value.dump()});
    }
    const json run = SucceedJson(replay)["runs"][0];
    EXPECT_NEAR(MeanLoss(run), recommended["mean_loss"].get<double>(), 1e-15) << format["format"];
    EXPECT_EQ(run["summary"]["skipped_steps"], recommended["skipped_steps"]);
    EXPECT_EQ(run["events"].size(), 0u);
    EXPECT_LE(format["least_possible_mean_loss"], recommended["mean_loss"]);
    EXPECT_EQ(format["headroom"]["steps"].size(), 13u);
  }
  EXPECT_EQ(document["verdict"]["formats"].size(), 3u);
  EXPECT_EQ(document["verdict"]["best"], "bf16");
}

TEST(TuneCommand, TakesAProfile) {
  const TempDir dir;
  const std::string folder = dir.path() + "/a";
  Succeed({"profile", kAccumulated, "-o", folder});
  const json got = SucceedJson({"tune", folder, "--json", "-"});
  const json expected = SucceedJson({"tune", kAccumulated, "--json", "-"});
  for (size_t f = 0; f < 3; ++f) {
    for (const char* key : {"recommended", "config", "verdict", "window", "headroom"}) {
      EXPECT_EQ(got["formats"][f][key], expected["formats"][f][key]) << key;
    }
  }
  ExpectFailure({"tune", folder, kSingle}, 2, {"a profile is read on its own"});
  ExpectFailure({"tune", folder, "--tensors", "nothing*"}, 3, {"no tensor matches"});
}

}  // namespace
}  // namespace dlsim
