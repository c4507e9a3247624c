// SPDX-License-Identifier: Apache-2.0
// A command as a function: its caller is asked once a step whether to go on, and gets everything.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "sim/app/commands.h"
#include "sim/base/caller.h"
#include "tests/support/trace_builder.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

constexpr int kSteps = 12;

class CountingCaller final : public Caller {
 public:
  explicit CountingCaller(int ends_at) : ends_at_(ends_at) {}

  void Write(std::string_view bytes) override { written += bytes; }
  void Say(std::string_view line) override { said.emplace_back(line); }
  void CheckCanceled() override {
    if (++asked == ends_at_) throw Canceled();
  }

  int asked = 0;
  std::string written;
  std::vector<std::string> said;

 private:
  int ends_at_;
};

class RunCommandTest : public testing::TestWithParam<const char*> {
 protected:
  RunCommandTest() {
    for (int step = 0; step < kSteps; ++step) {
      trace_.Write("step-" + std::to_string(step) + ".safetensors",
                   BuildSafetensors({FloatTensor("w.grad", {1.0f, 0.5f, 1e-6f})}));
    }
  }

  // Runs the command of the parameter, which writes to a directory as well.
  int Run(CountingCaller& caller) {
    std::vector<std::string> words = {"dlsim"};
    std::istringstream text(GetParam());
    for (std::string word; text >> word;) {
      if (word == "TRACE") word = trace_.path();
      const size_t at = word.find("OUT");
      words.push_back(at == std::string::npos ? word : word.replace(at, 3, results_.path()));
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const CallerScope scope(caller);
    return RunCommand(static_cast<int>(words.size()), argv.data());
  }

  TempDir trace_, results_;
};

TEST_P(RunCommandTest, AsksOnceAStepWhetherToGoOn) {
  CountingCaller caller(0);
  EXPECT_EQ(Run(caller), 0);
  EXPECT_TRUE(caller.said.empty());
  EXPECT_FALSE(caller.written.empty());
  EXPECT_FALSE(std::filesystem::is_empty(results_.path()));
  EXPECT_GE(caller.asked, kSteps);
}

TEST_P(RunCommandTest, EndsWhereItsCallerSaysSoAndLeavesNothing) {
  CountingCaller whole(0);
  Run(whole);
  for (const int ends_at : {1, 2, kSteps / 2, whole.asked}) {
    std::filesystem::remove_all(results_.path());
    std::filesystem::create_directory(results_.path());
    CountingCaller caller(ends_at);
    EXPECT_THROW(Run(caller), Canceled);
    EXPECT_EQ(caller.asked, ends_at);
    EXPECT_TRUE(std::filesystem::is_empty(results_.path()));
  }
}

INSTANTIATE_TEST_SUITE_P(Commands, RunCommandTest,
                         testing::Values("replay TRACE --json OUT/r.json --csv OUT/r.csv",
                                         "sweep TRACE --policy torch --vary init_scale=1,2 "
                                         "--json OUT/r.json",
                                         "tune TRACE --json OUT/r.json",
                                         "diff TRACE TRACE --json OUT/r.json",
                                         "replay TRACE --summaries OUT/r.json"));

}  // namespace
}  // namespace dlsim::sim
