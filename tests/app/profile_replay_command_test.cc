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

}  // namespace
}  // namespace dlsim
