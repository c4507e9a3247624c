// SPDX-License-Identifier: Apache-2.0
// dlsim profile on several MPI ranks: the bytes of one, failures, resuming. Needs mpirun.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

CommandResult RunRanks(int ranks, const Arguments& arguments) {
  Arguments all = {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                   std::to_string(ranks), DLSIM_COMMAND};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunProgram(DLSIM_MPIRUN, all);
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class ProfileMpi : public testing::Test {
 protected:
  WrittenTrace trace_{11};
  TempDir dir_;
  std::string output_ = dir_.path() + "/run.dlprof";
};

TEST_F(ProfileMpi, AnyNumberOfRanksGivesTheSameBytes) {
  for (const std::string& path : {trace_.path(), kAccumulated}) {
    const std::string whole = ProfileBytes(path);
    for (const int ranks : {1, 2, 3, 4}) {
      const CommandResult result = RunRanks(ranks, ProfileArguments(path, output_));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(Count(result.err, "dlsim"), 0u) << result.err;  // Open MPI may have remarks
      EXPECT_EQ(Lines(result.out).size(), 1u) << result.out;
      EXPECT_TRUE(ReadBytes(output_) == whole) << ranks << " ranks";
      fs::remove(output_);
    }
  }
}

TEST_F(ProfileMpi, MayHaveMoreRanksThanSteps) {
  const Arguments shard = {"--shard", "2/5"};
  const std::string whole = ProfileBytes(trace_.path(), shard);
  const CommandResult result = RunRanks(4, ProfileArguments(trace_.path(), output_, shard));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

// Whichever rank meets it: its line is printed once, and the steps before it are kept.
TEST_F(ProfileMpi, AFailureNamesTheFileAndLeavesNoResult) {
  const std::string whole = ProfileBytes(trace_.path());
  for (const int damaged : {4, 5, 6}) {
    const std::string good = ReadBytes(trace_.StepPath(damaged));
    trace_.WriteBytes(damaged, "damaged");
    const CommandResult result = RunRanks(3, ProfileArguments(trace_.path(), output_));
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(Count(result.err, "dlsim profile: "), 1u) << result.err;
    EXPECT_EQ(Count(result.err, WrittenTrace::StepName(damaged)), 1u) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(output_));
    trace_.WriteBytes(damaged, good);
    const CommandResult again = RunRanks(3, ProfileArguments(trace_.path(), output_));
    EXPECT_EQ(again.exit_code, 0) << again.err;
    const std::string kept = std::to_string(damaged);
    EXPECT_NE(again.err.find("note: resuming: " + kept + " of " + kept + " steps"),
              std::string::npos)
        << again.err;
    EXPECT_TRUE(ReadBytes(output_) == whole);
    fs::remove(output_);
  }
}

TEST_F(ProfileMpi, WhatAllRanksMeetIsSaidOnce) {
  for (const auto& [arguments, exit_code] :
       {std::pair(ProfileArguments(dir_.path() + "/none", output_), 3),
        {ProfileArguments(trace_.path(), output_, {"--shard", "3/2"}), 2},
        {ProfileArguments(trace_.path(), dir_.path()), 3}}) {
    const CommandResult result = RunRanks(3, arguments);
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(Count(result.err, "dlsim profile: "), 1u) << result.err;
    EXPECT_FALSE(fs::exists(output_));
  }
}

}  // namespace
}  // namespace dlsim
