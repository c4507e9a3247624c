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

TEST_F(ProfileCommand, SaysWhatTheProfileAnswers) {
  const std::string line = Succeed(ProfileArguments(trace_.path(), Path("run.dlprof")));
  EXPECT_EQ(Lines(line).size(), 1u);
  EXPECT_TRUE(line.starts_with(Path("run.dlprof") + ": 7 steps (0 to 6), ")) << line;
  EXPECT_NE(line.find("exact for fp16; rne; subnormals keep, flush; scales 1..2^8 (9)\n"),
            std::string::npos)
      << line;
  EXPECT_EQ(Succeed(ProfileArguments(trace_.path(), Path("run.dlprof"), {"--quiet"})), "");
}

TEST_F(ProfileCommand, ReportsAsJson) {
  const json report = SucceedJson(
      ProfileArguments(trace_.path(), Path("run.dlprof"), {"--json", "-", "--subnormals", "keep"}));
  EXPECT_EQ(report["schema"], "dlsim.profile-report/1");
  EXPECT_EQ(report["steps"], 7);
  EXPECT_EQ(report["last_step"], 6);
  EXPECT_EQ(report["profile_bytes"], fs::file_size(Path("run.dlprof")));
  EXPECT_EQ(report["trace_bytes"], 7 * fs::file_size(trace_.StepPath(0)));
  EXPECT_EQ(report["formats"], json::parse(R"(["fp16"])"));
  EXPECT_EQ(report["subnormals"], json::parse(R"(["keep"])"));
  EXPECT_EQ(report["scales"], json::parse("[1,2,4,8,16,32,64,128,256]"));
}

TEST_F(ProfileCommand, TakesItsLadderFromOptions) {
  Succeed({"profile", trace_.path(), "-o", Path("run.dlprof"), "--format", "e4m3", "--format",
           "cb16", "--format", "fp16", "--rounding", "rd", "--rounding", "rne", "--subnormals",
           "flush", "--scales", "3, 2^-1..9 0.75"});
  const Ladder ladder = Open(Path("run.dlprof")).settings().ladder;
  ASSERT_EQ(ladder.formats.size(), 3u);
  EXPECT_EQ(ladder.formats[0].name, "fp16");
  EXPECT_EQ(ladder.formats[2].name, "e4m3");
  EXPECT_EQ(ladder.roundings,
            (std::vector<Rounding>{Rounding::kNearestEven, Rounding::kTowardNegative}));
  EXPECT_EQ(ladder.subnormals, std::vector<Subnormals>{Subnormals::kFlushToZero});
  EXPECT_EQ(ladder.scales, (std::vector<float>{0.5f, 0.75f, 1, 2, 3, 4, 8}));
  Succeed({"profile", trace_.path(), "-o", Path("run.dlprof"), "--scales", "default,3"});
  EXPECT_EQ(Open(Path("run.dlprof")).settings().ladder.scales.size(),
            DefaultLadder().scales.size() + 1);
}

TEST_F(ProfileCommand, WrongUsageIsOneLine) {
  const auto fail = [&](const Arguments& more, int exit_code, const Arguments& words) {
    Arguments arguments = {"profile", trace_.path(), "-o", Path("run.dlprof")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ExpectFailure(arguments, exit_code, words);
    EXPECT_TRUE(fs::is_empty(dir_.path()));
  };
  for (const char* shard : {"0/3", "4/3", "1", "1/", "/3", "1/3/", "-1/3", "1/0", "a/b", "1/1e9",
                            "1/1000000001", "1 /3", ""}) {
    fail({"--shard", shard}, 2, {"--shard", "I/N"});
  }
  fail({"--rounding", "sr"}, 2, {"stochastic", "rne, rtz, rna, ru or rd", "'sr'"});
  fail({"--rounding", "up"}, 2, {"--rounding", "'up'"});
  fail({"--format", "fp61"}, 2, {"'fp61'"});
  fail({"--subnormals", "none"}, 2, {"keep, flush, both"});
  fail({"--scales", "2^x"}, 2, {"--scales", "'2^x'"});
  fail({"--scales", "0"}, 2, {"--scales", "positive"});
  fail({"--scales", ","}, 2, {"--scales", "no scales"});
  fail({"--scales", "1,9..5"}, 2, {"no power of two", "'9..5'"});
  fail({"--scales", "2^-200..1"}, 2, {"--scales", "'2^-200'"});
  fail({"--grad-accum-steps", "0"}, 2, {"grad_accum_steps"});
  fail({"--grad-accum-steps", "8"}, 2, {"at most 7"});
  fail({"--json", dir_.path() + "/./run.dlprof"}, 2, {"--json", "another file"});
  fail({"--tensors", "x*"}, 3, {"no tensor matches"});
  ExpectFailure({"profile", trace_.path()}, 2, {"--output"});
  ExpectFailure({"profile", trace_.path(), "-o", "-"}, 2, {"-o", "file"});
  ExpectFailure({"merge", trace_.StepPath(0)}, 2, {"--output"});
  ExpectFailure({"merge", "-o", Path("x")}, 2, {"PROFILE"});
}

TEST_F(ProfileCommand, RefusesAProfileAsTrace) {
  Succeed(ProfileArguments(trace_.path(), Path("run.dlprof")));
  ExpectFailure(ProfileArguments(Path("run.dlprof"), Path("again.dlprof")), 3,
                {"run.dlprof: is a profile already", "dlsim merge"});
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

TEST_F(ProfileCommand, ShardsOfRealTracesMergeToTheWhole) {
  for (const std::string& path : {kAccumulated, kSingle}) {
    Succeed({"profile", path, "-o", Path("whole")});
    Arguments merge = {"merge", "-o", Path("merged")};
    for (const char* part : {"3", "1", "2"}) {
      const CommandResult result = RunCommand(
          {"profile", path, "-o", Path(part), "--shard", part + std::string("/3"), "--quiet"});
      EXPECT_EQ(result.exit_code, 0) << result.err;
      merge.push_back(Path(part));
    }
    Succeed(merge);
    EXPECT_TRUE(ReadBytes(Path("merged")) == ReadBytes(Path("whole")));
  }
}

TEST_F(ProfileCommand, AShardMayBeEmptyAndSaysSo) {
  const CommandResult result =
      RunCommand(ProfileArguments(trace_.path(), Path("part"), {"--shard", "1/10"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "dlsim profile: note: shard 1/10 holds no step\n");
  EXPECT_NE(result.out.find("part: no steps, "), std::string::npos) << result.out;
  EXPECT_EQ(Open(Path("part")).step_count(), 0u);
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

TEST_F(ProfileCommand, MergeRefusesWhatDoesNotFit) {
  const std::string first = Shard(1, 2), second = Shard(2, 2, {"--tensors", "w0*"});
  const std::string output = dir_.Write("out", "an older result");
  const auto fail = [&](const std::string& other, const Arguments& words) {
    ExpectFailure({"merge", first, other, "-o", output}, 3, words);
    EXPECT_EQ(ReadBytes(output), "an older result");
  };
  fail(second, {"2-of-2"});
  trace_.WriteStep(0, 99);
  fail(Shard(1, 3), {"1-of-3", "step 0"});
  fail(Path("missing"), {"missing"});
  fail(trace_.StepPath(1), {"step-1.safetensors"});
}

// What is not there would be taken for steps that the trace does not have.
TEST_F(ProfileCommand, MergeRefusesAMissingShard) {
  const std::string first = Shard(1, 3), second = Shard(2, 3), third = Shard(3, 3);
  const std::string whole = Merge({first, second, third});
  ExpectFailure({"merge", first, third, "-o", Path("out")}, 3,
                {"1-of-3", "shards are missing: no file holds steps 3 to 4 of 7 (counted from 1)",
                 "expected the profiles of all shards, or --partial"});
  EXPECT_FALSE(fs::exists(Path("out")));
  Succeed({"merge", third, first, "-o", Path("two"), "--partial", "--quiet"});
  // A part of a part knows what is missing, and becomes the whole with it.
  ExpectFailure({"merge", Path("two"), "-o", Path("out")}, 3, {"steps 3 to 4 of 7 "});
  EXPECT_TRUE(Merge({Path("two"), second}) == whole);
}

TEST_F(ProfileCommand, APartSaysSoWhereItIsRead) {
  const std::string report = Succeed({"info", Shard(2, 3)});
  EXPECT_NE(report.find("note: a part of a trace: steps 1 to 2 of 7 (counted from 1) are missing"),
            std::string::npos)
      << report;
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
