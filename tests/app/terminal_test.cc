// SPDX-License-Identifier: Apache-2.0
// What every command prints to people: in lines that fit, and nothing with --quiet.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    setenv("COLUMNS", "80", 1);
    Succeed({"profile", kSingle, "-o", profile_, "--quiet"});
  }
  void TearDown() override { unsetenv("COLUMNS"); }

  std::vector<Arguments> Reports() const {
    std::vector<Arguments> calls;
    for (const std::string& trace : {kSingle, kAccumulated, profile_}) {
      calls.push_back({"replay", trace});
      calls.push_back({"replay", trace, "--details", "--by-layer", "--policy", "all"});
      calls.push_back({"tune", trace, "--details"});
      calls.push_back({"sweep", trace, "--vary", "initial_loss_scale=2^0..2^32"});
      calls.push_back({"sweep", trace, "--policy", "torch", "--policy", "megatron", "--sort",
                       "skipped", "--vary", "format=fp16,bf16"});
      calls.push_back({"info", trace});
      calls.push_back({"diff", trace, trace});
    }
    calls.push_back({"replay", kSingle, "--policy", "torch", "--resume-at", "3"});
    return calls;
  }

  // Returns the lines that do not fit; a path stands as it is.
  static std::string TooWide(const std::string& text) {
    std::string wide;
    for (const std::string& line : Lines(text)) {
      const bool path = line.find(DLSIM_TEST_DATA) != std::string::npos ||
                        line.find("/dlsim-") != std::string::npos;
      if (line.size() > 80 && !path) wide += line + "\n";
    }
    return wide;
  }

  const TempDir dir_;
  const std::string profile_ = dir_.path() + "/a.profile";
};

TEST_F(Terminal, ReportsFitIt) {
  for (const Arguments& call : Reports()) {
    const CommandResult result = RunCommand(call);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(TooWide(result.out), "") << call[0];
  }
}

TEST_F(Terminal, ListsAndHelpFitIt) {
  EXPECT_EQ(TooWide(Succeed({"scaler", "--list"})), "");
  EXPECT_EQ(TooWide(Succeed({"formats"})), "");
  EXPECT_EQ(TooWide(Succeed({"--help"})), "");
  setenv("COLUMNS", "400", 1);  // the model has the names only
  const nlohmann::json model = SucceedJson({"--dump-options"});
  setenv("COLUMNS", "80", 1);
  for (const auto& [name, command] : model["commands"].items()) {
    const std::set<std::string> in_python = {"accumulate", "bench",  "explain",
                                             "import",     "report", "updates"};
    if (in_python.contains(name)) continue;
    EXPECT_EQ(TooWide(Succeed({name, "--help"})), "") << name;
  }
}

TEST_F(Terminal, QuietPrintsNothing) {
  for (Arguments call : Reports()) {
    call.push_back("--quiet");
    const CommandResult result = RunCommand(call);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out + result.err, "") << call[0];
  }
}

}  // namespace
}  // namespace dlsim
