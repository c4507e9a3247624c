// SPDX-License-Identifier: Apache-2.0
// dlsim profile and dlsim merge: what they write and say, shards, and wrong usage.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "sim/profile/content_hash.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ProfileReader Open(const std::string& path) {
  return ProfileReader::Open(std::vector<std::string>{path});
}

class ProfileCommand : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Profiles a shard of the trace and returns the path of the file.
  std::string Shard(int index, int count, const Arguments& more = {}) {
    const std::string part = std::to_string(index) + "/" + std::to_string(count);
    const std::string path = Path(std::to_string(index) + "-of-" + std::to_string(count));
    Arguments arguments = ProfileArguments(trace_.path(), path, {"--shard", part});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = RunCommand(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return path;
  }

  std::string Merge(const std::vector<std::string>& paths) {
    Arguments arguments = {"merge", "-o", Path("merged.dlprof")};
    arguments.insert(arguments.end(), paths.begin(), paths.end());
    Succeed(arguments);
    return ReadBytes(Path("merged.dlprof"));
  }

  WrittenTrace trace_{7};
  TempDir dir_;
};

TEST_F(ProfileCommand, WritesWhatTheLibraryProfiles) {
  for (const std::string& path : {kAccumulated, kSingle}) {
    for (const char* rule : {"quantize-first", "sum-first"}) {
      Succeed({"profile", path, "-o", Path("run.dlprof"), "--accumulate", rule});
      const ProfileReader profile = Open(Path("run.dlprof"));
      EXPECT_EQ(profile.edges(), EdgesOf(DefaultLadder()));
      StepOptions options;
      options.accumulation = profile.settings().accumulation;
      EXPECT_EQ(options.accumulation == Accumulation::kSumThenQuantize,
                rule == std::string("sum-first"));
      const TraceReader trace = OpenTrace({path});
      EXPECT_EQ(profile.settings().description, trace.description());
      ASSERT_EQ(profile.step_count(), trace.step_count());
      for (size_t i = 0; i < trace.step_count(); ++i) {
        ProfileStep expected = ProfileOf(trace.Load(i), profile.edges(), options);
        const std::vector<std::string> files = trace.files(i);
        for (size_t k = 0; k < files.size(); ++k) {
          expected.files[k].content = sim::ContentHash(files[k]);
        }
        EXPECT_EQ(profile.Load(i), expected) << i;
      }
    }
  }
}

TEST_F(ProfileCommand, GroupsRecordedSteps) {
  Succeed(ProfileArguments(trace_.path(), Path("run.dlprof"), {"--grad-accum-steps", "3"}));
  const ProfileReader profile = Open(Path("run.dlprof"));
  EXPECT_EQ(profile.settings().accumulate_steps, 3);
  ASSERT_EQ(profile.step_count(), 2u);  // the seventh is no whole step
  EXPECT_EQ(profile.step_number(0), 2);
  const ProfileStep step = profile.Load(1);
  EXPECT_EQ(step.micro_steps, (std::vector<int64_t>{0, 1, 2}));
  ASSERT_EQ(step.files.size(), 3u);
  EXPECT_EQ(step.files[0].name, "step-3.safetensors");
  EXPECT_EQ(step.files[2].name, "step-5.safetensors");
  EXPECT_EQ(step.files[0].bytes, fs::file_size(trace_.StepPath(3)));
}

TEST_F(ProfileCommand, NeverReplacesAFileOfTheTrace) {
  const std::string step = ReadBytes(trace_.StepPath(3));
  ExpectFailure(ProfileArguments(trace_.path(), trace_.StepPath(3)), 2, {"-o", "trace"});
  ExpectFailure(ProfileArguments(trace_.path(), trace_.StepPath(3), {"--shard", "1/7"}), 2, {"-o"});
  EXPECT_TRUE(ReadBytes(trace_.StepPath(3)) == step);
}

TEST_F(ProfileCommand, MayBeInTheFolderOfItsTrace) {
  const std::string whole = ProfileBytes(trace_.path());
  const std::string inside = trace_.path() + "/run.dlprof";
  for (int run = 0; run < 2; ++run) {
    Succeed(ProfileArguments(trace_.path(), inside));
    EXPECT_TRUE(ReadBytes(inside) == whole);
  }
}

TEST_F(ProfileCommand, IsTheSameOnAnyNumberOfThreads) {
  const std::string whole = ProfileBytes(trace_.path());
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_TRUE(ProfileBytes(trace_.path()) == whole);
  unsetenv("OMP_NUM_THREADS");
}

TEST_F(ProfileCommand, ShardsMergeToTheWholeInAnyOrder) {
  const std::string whole = ProfileBytes(trace_.path());
  std::mt19937 random(3);
  for (const int count : {1, 2, 3, 7, 10}) {
    std::vector<std::string> shards;
    for (int index = 1; index <= count; ++index) shards.push_back(Shard(index, count));
    for (int order = 0; order < 3; ++order) {
      std::ranges::shuffle(shards, random);
      EXPECT_TRUE(Merge(shards) == whole) << count << " shards";
    }
  }
  EXPECT_TRUE(ReadBytes(Shard(1, 1)) == whole);
}

TEST_F(ProfileCommand, MergeReplacesNoneOfItsInputs) {
  const std::string first = Shard(1, 2), second = Shard(2, 2), before = ReadBytes(first);
  ExpectFailure({"merge", first, second, "-o", first}, 2,
                {"-o: would replace what PROFILE names", "expected another file"});
  EXPECT_TRUE(ReadBytes(first) == before);
  const std::string older = dir_.Write("whole", "an older result");
  Succeed({"merge", first, second, "-o", older});
  EXPECT_TRUE(ReadBytes(older) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileCommand, MergeNamesADamagedProfile) {
  const std::string first = Shard(1, 2), second = Shard(2, 2);
  const std::string good = ReadBytes(second), output = dir_.Write("out", "an older result");
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    std::string bad = good;
    if (i % 2 == 0) {
      bad.resize(random() % good.size());
    } else {
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    }
    dir_.Write("2-of-2", bad);
    ExpectFailure({"merge", first, second, "-o", output}, 3, {"2-of-2"});
    EXPECT_EQ(ReadBytes(output), "an older result");
  }
}

}  // namespace
}  // namespace dlsim
