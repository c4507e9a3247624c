// SPDX-License-Identifier: Apache-2.0
// The command dlsim sweep: its results against those of dlsim replay, its files, its errors.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "sim/base/parse.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

const std::string kDiabetes = kTraces + "reg-diabetes-cut";

Arguments Joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Expects the keys that both have to be equal, sums to 1e-12.
void ExpectSameSummary(const json& replayed, const json& swept) {
  for (const auto& [key, value] : replayed.items()) {
    if (!swept.contains(key)) continue;
    if (value.is_number_float()) {
      const double a = value.get<double>(), b = swept[key].get<double>();
      EXPECT_LE(std::fabs(a - b), 1e-12 * std::fabs(a)) << key;
    } else {
      EXPECT_EQ(value, swept[key]) << key;
    }
  }
}

std::string SettingText(const json& value) {
  return value.is_boolean() ? (value.get<bool>() ? "true" : "false") : value.dump();
}

TEST(SweepCommand, EachRunIsThatOfAReplay) {
  const json document =
      SucceedJson({"sweep", kDiabetes, "--format", "fp16", "--format", "bf16", "--policy", "torch",
                   "--policy", "cerebras", "--vary", "init_scale=2^4,2^30", "--vary",
                   "growth_interval=2,7", "--vary", "rounding=rne,rtz", "--json", "-"});
  EXPECT_EQ(document["schema"], "dlsim.sweep/1");
  EXPECT_EQ(document["trace"]["steps"], 25);
  ASSERT_EQ(document["runs"].size(), 2u * 2 * (4 + 2));
  for (const json& run : document["runs"]) {
    Arguments arguments = {"replay",      kDiabetes,    "--format",      run["format"], "--policy",
                           run["policy"], "--rounding", run["rounding"], "--json",      "-"};
    for (const char* key : {"init_scale", "growth_interval", "initial_loss_scale"}) {
      if (!run["params"].contains(key)) continue;
      arguments.push_back("--set");
      arguments.push_back(std::string(key) + "=" + SettingText(run["params"][key]));
    }
    SCOPED_TRACE(run.dump());
    const json replayed = SucceedJson(arguments)["runs"][0];
    EXPECT_EQ(replayed["params"], run["params"]);
    EXPECT_GE(run["summary"].size(), 22u);
    ExpectSameSummary(replayed["summary"], run["summary"]);
  }
}

TEST(SweepCommand, NothingBeatsTheParetoFront) {
  const json document = SucceedJson({"sweep", kTraces + "cnn-digits", "--format", "fp16", "--vary",
                                     "initial_loss_scale=2^-10..2^40", "--vary",
                                     "steps_per_increase=1,5,100", "--json", "-"});
  const json& runs = document["runs"];
  const auto skipped = [&](size_t r) { return runs[r]["summary"]["skipped_steps"].get<int>(); };
  const auto energy = [&](size_t r) {
    return runs[r]["summary"]["mean_energy_lost"].get<double>();
  };
  ASSERT_FALSE(document["pareto"].empty());
  for (const json& index : document["pareto"]) {
    const auto on_front = index.get<size_t>();
    for (size_t r = 0; r < runs.size(); ++r) {
      const bool no_worse = skipped(r) <= skipped(on_front) && energy(r) <= energy(on_front);
      const bool better = skipped(r) < skipped(on_front) || energy(r) < energy(on_front);
      EXPECT_FALSE(no_worse && better) << r << " beats " << on_front;
    }
  }
}

class SweptProfile : public testing::Test {
 protected:
  SweptProfile() {
    const std::vector<std::string> paths = {kDiabetes};
    const TraceReader trace = TraceReader::Open(paths, {});
    const ProfileWriter writer(profile_, {}, ProfileWriter::Existing::kReplace);
    for (size_t i = 0; i < trace.step_count(); ++i) writer.Write(TabulateStep(trace.Load(i), {}));
  }

  TempDir dir_;
  std::string profile_ = dir_.path() + "/profile";
};

TEST_F(SweptProfile, EqualsTheTraceAtPowersOfTwo) {
  const Arguments options = {
      "--policy", "torch", "--policy", "static", "--vary", "init_scale=2^0..2^30", "--json", "-"};
  const json of_trace = SucceedJson(Joined({"sweep", kDiabetes}, options));
  const json of_profile = SucceedJson(Joined({"sweep", profile_}, options));
  ASSERT_EQ(of_trace["runs"].size(), of_profile["runs"].size());
  for (size_t r = 0; r < of_trace["runs"].size(); ++r) {
    const json &a = of_trace["runs"][r], &b = of_profile["runs"][r];
    SCOPED_TRACE(a.dump());
    EXPECT_EQ(a["params"], b["params"]);
    ExpectSameSummary(a["summary"], b["summary"]);
  }
  EXPECT_EQ(of_trace["pareto"], of_profile["pareto"]);
}

TEST_F(SweptProfile, RefusesWhatItCannotAnswer) {
  const json swept =
      SucceedJson({"sweep", profile_, "--policy", "torch", "--format", "fp16", "--vary",
                   "rounding=rne,sr", "--vary", "init_scale=2^10,1000", "--json", "-"});
  ASSERT_EQ(swept["runs"].size(), 1u);
  EXPECT_EQ(swept["runs"][0]["rounding"], "rne");
  EXPECT_EQ(swept["runs"][0]["params"]["init_scale"], 1024);
  uint64_t refused = 0;
  for (const json& points : swept["refused"]) refused += points["count"].get<uint64_t>();
  EXPECT_EQ(refused, 3u);
}

}  // namespace
}  // namespace dlsim::sim
