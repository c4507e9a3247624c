// SPDX-License-Identifier: Apache-2.0
// dlsim replay and dlsim info of a profile.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

class ProfileReplayCommandTest : public testing::Test {
 protected:
  std::string Profile(const std::string& trace, const Ladder& ladder = DefaultLadder(),
                      Accumulation accumulation = Accumulation::kQuantizeThenSum) {
    const std::string path = dir_.path() + "/" + std::to_string(profiles_++) + ".dlprof";
    const TraceReader reader = OpenTrace({trace});
    const HistogramEdges edges = EdgesOf(ladder);
    ProfileSettings settings;
    settings.ladder = ladder;
    settings.description = reader.description();
    settings.accumulation = accumulation;
    StepOptions options;
    options.accumulation = accumulation;
    ProfileWriter writer(path, settings, ProfileWriter::Existing::kReplace);
    for (size_t i = 0; i < reader.step_count(); ++i) {
      writer.Append(EncodeStep(ProfileOf(reader.Load(i), edges, options), edges));
    }
    writer.Commit();
    return path;
  }

  TempDir dir_;
  int profiles_ = 0;
};

// Removes what a profile adds or only estimates.
json WithoutNorms(json run) {
  const auto erase = [](json& object) {
    for (const char* key :
         {"grad_norm", "grad_norm_bracket", "energy_lost", "worst_step_energy_lost", "mean_harm",
          "mean_harm_bracket", "worst_harm", "worst_harm_bracket", "worst_harm_tensor",
          "mean_channel_harm", "worst_channel_harm"}) {  // of one channel as of the tensor
      object.erase(key);
    }
  };
  for (json& step : run["steps"]) {
    erase(step);
    erase(step["activations"]);
  }
  for (json& tensor : run["tensors"]) erase(tensor);
  erase(run["summary"]);
  erase(run["summary"]["activations"]);
  run.erase("layers");  // ordered by harm
  return run;
}

TEST_F(ProfileReplayCommandTest, ReplaysAsTheTraceDoes) {
  const std::string profile = Profile(kSingle);
  const Arguments options = {"--policy", "cerebras", "--policy", "torch", "--json", "-"};
  Arguments of_trace = {"replay", kSingle}, of_profile = {"replay", profile};
  of_trace.insert(of_trace.end(), options.begin(), options.end());
  of_profile.insert(of_profile.end(), options.begin(), options.end());
  const json expected = SucceedJson(of_trace), got = SucceedJson(of_profile);
  EXPECT_EQ(got["options"], expected["options"]);
  ASSERT_EQ(got["runs"].size(), expected["runs"].size());
  for (size_t r = 0; r < got["runs"].size(); ++r) {
    EXPECT_EQ(WithoutNorms(got["runs"][r]), WithoutNorms(expected["runs"][r]));
    const json& step = got["runs"][r]["steps"][0];
    EXPECT_EQ(step["grad_norm_bracket"].size(), 2u);
  }
  EXPECT_EQ(got["trace"]["profile"], true);
  EXPECT_EQ(got["trace"]["trace_bytes"], expected["trace"]["file_bytes"]);
  EXPECT_EQ(got["trace"]["ladder"]["scale_count"], 259);
}

TEST_F(ProfileReplayCommandTest, MarksWhatIsNotExact) {
  const std::string profile = Profile(kSingle);
  const Arguments off = {"replay",
                         profile,
                         "--policy",
                         "static",
                         "--format",
                         "fp16",
                         "--set",
                         "loss_scale=1234567",
                         "--json",
                         "-",
                         "--max-gradient-value",
                         "0.001"};
  const json run = SucceedJson(off)["runs"][0];
  EXPECT_EQ(run["summary"]["exact"], false);
  const json& bracket = run["summary"]["bracket"];
  for (const char* key : {"underflow", "underflow_fraction", "energy_lost"}) {
    EXPECT_LT(bracket[key][0], bracket[key][1]) << key;
    EXPECT_LE(bracket[key][0], run["summary"][key]) << key;
    EXPECT_GE(bracket[key][1], run["summary"][key]) << key;
  }
  const std::string report = Succeed(
      {"replay", profile, "--policy", "static", "--format", "fp16", "--set", "loss_scale=1234567"});
  EXPECT_NE(report.find("note: read from a profile"), std::string::npos) << report;
  EXPECT_NE(report.find(".."), std::string::npos) << report;
  const std::vector<std::string> rows = Lines(Succeed({"replay", profile, "--csv", "-"}));
  EXPECT_TRUE(rows[0].ends_with(",exact"));
  EXPECT_TRUE(rows[1].ends_with(",1"));
}

TEST_F(ProfileReplayCommandTest, RefusesWhatAProfileCannotAnswer) {
  const std::string profile = Profile(kAccumulated);
  const std::string sums = Profile(kAccumulated, DefaultLadder(), Accumulation::kSumThenQuantize);
  ExpectFailure({"replay", profile, "--rounding", "sr"}, 2, {"stochastic", "trace"});
  ExpectFailure({"replay", profile, "--accumulate", "sum-first"}, 2, {"--accumulate"});
  ExpectFailure({"replay", sums, "--accumulate", "quantize-first"}, 2, {"--accumulate"});
  ExpectFailure({"replay", profile, "--grad-accum-steps", "3"}, 2, {"grad_accum_steps", "4", "3"});
  ExpectFailure({"replay", profile, kAccumulated}, 2, {"TRACE", "profiles"});
  ExpectFailure({"replay", profile, "--tensors", "none*"}, 3, {"--tensors"});
  ExpectFailure({"info", profile, "--tensors", "none*"}, 3, {"--tensors"});
  ExpectFailure({"replay", profile, "--summaries", "-"}, 2, {"TRACE: a profile"});
  Succeed({"replay", profile, "--grad-accum-steps", "4"});
  EXPECT_EQ(SucceedJson({"replay", sums, "--json", "-"})["options"]["accumulate"], "sum-first");
}

TEST_F(ProfileReplayCommandTest, ListsWhatAProfileHolds) {
  const std::string profile = Profile(kAccumulated);
  const std::string text = Succeed({"info", profile});
  for (const char* part : {"steps: 2 ", "files: 8", "ladder: fp16, bf16, cb16; rne, rtz",
                           "2^-24..2^40", "(259)", "accumulation: quantize-first"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  const json got = SucceedJson({"info", profile, "--json"});
  const json expected = SucceedJson({"info", kAccumulated, "--json"});
  ASSERT_EQ(got["tensors"].size(), expected["tensors"].size());
  for (size_t t = 0; t < got["tensors"].size(); ++t) {
    const json &a = got["tensors"][t], &b = expected["tensors"][t];
    for (const char* key : {"name", "role", "dtype", "shape", "elements"})
      EXPECT_EQ(a[key], b[key]);
    EXPECT_EQ(a["parts"], b["files"]);
  }
  EXPECT_EQ(got["steps"].size(), 2u);
  EXPECT_EQ(got["steps"][0]["micro_steps"], json({0, 1, 2, 3}));
  EXPECT_EQ(got["trace"]["profile"], true);
}

}  // namespace
}  // namespace dlsim
