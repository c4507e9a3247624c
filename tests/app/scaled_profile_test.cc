// SPDX-License-Identifier: Apache-2.0
// Profiles that hold what tensors lose in scaled formats answer as their traces do.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

const Arguments kFormats = {"fp8-current", "fp8-block", "mxfp4:rule=even", "nvfp4"};

Arguments With(Arguments arguments, const Arguments& formats) {
  for (const std::string& format : formats) {
    arguments.insert(arguments.end(), {"--format", format});
  }
  return arguments;
}

class ScaledProfileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Profiles a trace for one question and scaled formats.
  std::string Profile(const std::string& trace, const Arguments& formats,
                      const Arguments& more = {}) {
    const std::string path = Path(std::to_string(profiles_++) + ".dlprof");
    Arguments arguments = With({"profile", trace, "-o", path, "--scales", "1", "--rounding", "rne",
                                "--format", "fp16", "--quiet"},
                               formats);
    arguments.insert(arguments.end(), more.begin(), more.end());
    Succeed(arguments);
    return path;
  }

  TempDir dir_;
  int profiles_ = 0;
};

TEST_F(ScaledProfileTest, AnswersAsTheTrace) {
  for (const std::string& trace :
       {kTraces + "t5-stream", kAccumulated, kTraces + "lm-trouble-cut"}) {
    SCOPED_TRACE(trace);
    const std::string profile = Profile(trace, kFormats);
    const json expected = SucceedJson(With({"replay", trace, "--json", "-"}, kFormats));
    const json got = SucceedJson(With({"replay", profile, "--json", "-"}, kFormats));
    ASSERT_EQ(expected["verdict"]["formats"].size(), kFormats.size());
    EXPECT_EQ(got["verdict"], expected["verdict"]);
    EXPECT_EQ(Succeed(With({"replay", profile, "--csv", "-"}, kFormats)),
              Succeed(With({"replay", trace, "--csv", "-"}, kFormats)));
  }
}

TEST_F(ScaledProfileTest, AnswersForTheTensorsAskedFor) {
  const std::string trace = kTraces + "t5-stream", profile = Profile(trace, {"mxfp8"});
  const Arguments options = {"--format", "mxfp8", "--tensors", "block.1*", "--json", "-"};
  Arguments of_trace = {"replay", trace}, of_profile = {"replay", profile};
  of_trace.insert(of_trace.end(), options.begin(), options.end());
  of_profile.insert(of_profile.end(), options.begin(), options.end());
  const json verdict = SucceedJson(of_profile)["verdict"];
  EXPECT_GT(verdict["formats"][0]["scaled"]["tensors"].size(), 0u);
  EXPECT_EQ(verdict, SucceedJson(of_trace)["verdict"]);
}

TEST_F(ScaledProfileTest, PartsMergeToTheWhole) {
  const std::string whole = Profile(kSingle, {"mxfp8"});
  const std::string first = Profile(kSingle, {"mxfp8"}, {"--shard", "1/2"});
  const std::string second = Profile(kSingle, {"mxfp8"}, {"--shard", "2/2"});
  Succeed({"merge", second, first, "-o", Path("merged.dlprof"), "--quiet"});
  EXPECT_EQ(ReadBytes(Path("merged.dlprof")), ReadBytes(whole));
  const std::string other = Profile(kSingle, {"nvfp4"}, {"--shard", "2/2"});
  ExpectFailure({"merge", first, other, "-o", Path("no.dlprof")}, 3, {"scaled_formats"});
}

}  // namespace
}  // namespace dlsim
