// SPDX-License-Identifier: Apache-2.0
// dlsim replay --heat-map: what each tensor loses over bins of steps.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

json Replayed(const std::string& trace, const std::string& heat_map, Arguments more = {}) {
  Arguments arguments = {"replay", trace, "--policy", "torch", "--json", "-"};
  if (!heat_map.empty()) arguments.push_back(heat_map);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return SucceedJson(arguments);
}

template <class T>
T Sum(const json& values) {
  const auto list = values.get<std::vector<T>>();
  return std::accumulate(list.begin(), list.end(), T{});
}

TEST(HeatMap, BinsAddUpToTheTensorsOfTheRun) {
  for (const std::string& trace : {kSingle, kAccumulated}) {
    const json result = Replayed(trace, "--heat-map=4");
    for (const json& run : result["runs"]) {
      const json& rows = run["heat_map"]["tensors"];
      ASSERT_EQ(rows.size(), run["tensors"].size());
      for (size_t i = 0; i < rows.size(); ++i) {
        const json &row = rows[i], &tensor = run["tensors"][i];
        EXPECT_EQ(row["name"], tensor["name"]);
        EXPECT_EQ(row["role"], tensor["role"]);
        EXPECT_EQ(Sum<uint64_t>(row["underflow"]), tensor["underflow"].get<uint64_t>());
        EXPECT_EQ(Sum<uint64_t>(row["overflow"]), tensor["overflow"].get<uint64_t>());
        EXPECT_EQ(Sum<uint64_t>(row["nonzero"]), tensor["elements"].get<uint64_t>() -
                                                     tensor["zeros"].get<uint64_t>() -
                                                     tensor["nonfinite"].get<uint64_t>());
        const double energy = Sum<double>(row["sum_of_squares"]);
        const double lost = Sum<double>(row["underflow_sum_of_squares"]);
        const double expected = tensor["energy_lost"].get<double>();
        EXPECT_NEAR(energy == 0 ? 0 : lost / energy, expected, 1e-12 * expected);
      }
    }
  }
}

TEST(HeatMap, OneBinPerStepHasTheStepsOfTheRun) {
  const json result = Replayed(kSingle, "--heat-map");
  for (const json& run : result["runs"]) {
    const json &bins = run["heat_map"]["bins"], &steps = run["steps"];
    ASSERT_EQ(bins["steps"].size(), steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(bins["first_step"][i], steps[i]["step"]);
      EXPECT_EQ(bins["last_step"][i], steps[i]["step"]);
      EXPECT_EQ(bins["steps"][i], 1);
      EXPECT_EQ(bins["skipped_steps"][i], steps[i]["skipped"] ? 1 : 0);
      std::map<std::string, uint64_t> underflow;
      for (const json& row : run["heat_map"]["tensors"]) {
        underflow[row["role"]] += row["underflow"][i].get<uint64_t>();
      }
      EXPECT_EQ(underflow["grad"], steps[i]["underflow"].get<uint64_t>());
      EXPECT_EQ(underflow["act_grad"], steps[i]["activations"]["underflow"].get<uint64_t>());
    }
  }
}

TEST(HeatMap, BinsDifferByOneStepAtMost) {
  const json bins = Replayed(kSingle, "--heat-map=5")["runs"][0]["heat_map"]["bins"];
  EXPECT_EQ(bins["steps"], json({3, 3, 2, 3, 2}));
  EXPECT_EQ(bins["first_step"].size(), 5u);
  EXPECT_EQ(bins["first_step"][0], 0);
  EXPECT_EQ(bins["last_step"][4], 377);
}

TEST(HeatMap, ARunThatStoppedHasTheBinsItReached) {
  const json document = Replayed(kSingle, "--heat-map",
                                 {"--policy", "deepspeed", "--format", "fp16", "--set",
                                  "deepspeed.init_scale=1", "--set", "deepspeed.min_scale=1"});
  const json& run = document["runs"][1];
  ASSERT_FALSE(run["summary"]["stopped_at_step"].is_null());
  EXPECT_EQ(run["heat_map"]["bins"]["steps"].size(), run["steps"].size());
  EXPECT_LT(run["steps"].size(), document["runs"][0]["steps"].size());
  for (const json& row : run["heat_map"]["tensors"]) {
    EXPECT_EQ(row["nonzero"].size(), run["steps"].size());
  }
}

TEST(HeatMap, LeavesTheRestOfTheResultAsItIs) {
  json with = Replayed(kSingle, "--heat-map=3"), without = Replayed(kSingle, "");
  for (json& run : with["runs"]) {
    EXPECT_EQ(run.erase("heat_map"), 1u);
  }
  EXPECT_EQ(with, without);
}

TEST(HeatMap, InterruptedTwinsHaveTheirOwn) {
  const json document =
      Replayed(kSingle, "--heat-map=4", {"--format", "fp16", "--resume-at", "170"});
  ASSERT_EQ(document["runs"].size(), 3u);
  for (const json& run : document["runs"]) {
    uint64_t skipped = Sum<uint64_t>(run["heat_map"]["bins"]["skipped_steps"]);
    EXPECT_EQ(skipped, run["summary"]["skipped_steps"].get<uint64_t>());
  }
}

TEST(HeatMap, ARefusedPolicyHasNone) {
  const CommandResult result = RunCommand({"replay", kSingle, "--policy", "torch", "--set",
                                           "growth_factor=0.5", "--heat-map", "--json", "-"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_FALSE(json::parse(result.out)["runs"][0].contains("heat_map"));
}

TEST(HeatMap, WrongUseIsRefused) {
  ExpectFailure({"replay", kSingle, "--heat-map"}, 2, {"--heat-map", "--json"});
  ExpectFailure({"replay", kSingle, "--heat-map=0", "--json", "-"}, 2, {"--heat-map", "1 or more"});
  ExpectFailure({"replay", kSingle, "--heat-map=-3", "--json", "-"}, 2, {"--heat-map", "-3"});
  ExpectFailure({"replay", kSingle, "--heat-map=many", "--json", "-"}, 2, {"--heat-map", "many"});
}

}  // namespace
}  // namespace dlsim
