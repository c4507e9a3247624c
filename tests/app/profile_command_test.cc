// SPDX-License-Identifier: Apache-2.0
// dlsim profile: what it writes, what it skips when it continues, and that its profile answers as
// the trace does.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "dlsim/profile.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Files = std::map<std::string, std::string>;

class ProfileCommand : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Continues a profile of the trace; expects notes with these words, or none without.
  void Continue(const std::string& words, const Arguments& more = {}) {
    const CommandResult result = RunCommand(ProfileArguments(trace_.path(), Path("p"), more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find(words), result.err.npos) << result.err;
    EXPECT_EQ(result.err.empty(), words.empty()) << result.err;
  }

  WrittenTrace trace_{7};
  TempDir dir_;
};

TEST_F(ProfileCommand, WritesWhatTheLibraryTabulates) {
  for (const std::string& path : {kAccumulated, kSingle}) {
    for (const char* rule : {"quantize-first", "sum-first"}) {
      Succeed({"profile", path, "-o", Path("p"), "--accumulate", rule, "--scale", "2e15",
               "--scaled-format", "mxfp8", "--restart"});
      const ProfileReader profile = ProfileReader::Open(Path("p"));
      StepOptions options;
      options.accumulation = profile.settings().accumulation;
      options.mantissas = profile.settings().mantissas;
      options.scaled = profile.settings().scaled;
      EXPECT_EQ(options.mantissas, std::vector<float>{0x1.c6bf52p+0f});
      EXPECT_EQ(options.accumulation == Accumulation::kSumThenQuantize,
                rule == std::string("sum-first"));
      const TraceReader trace = OpenTrace({path});
      EXPECT_EQ(profile.settings().description, trace.description());
      ASSERT_EQ(profile.step_count(), trace.step_count());
      for (size_t i = 0; i < trace.step_count(); ++i) {
        StepTables expected = TabulateStep(trace.Load(i), options), got = profile.Load(i);
        const std::vector<std::string> files = trace.files(i);
        ASSERT_EQ(got.files.size(), files.size());
        for (size_t k = 0; k < files.size(); ++k) {
          EXPECT_EQ(got.files[k].content, ContentHash(files[k]));
          EXPECT_EQ(got.files[k].bytes, fs::file_size(files[k]));
        }
        expected.files = got.files;
        EXPECT_TRUE(got == expected) << i;
      }
    }
  }
}

TEST_F(ProfileCommand, GroupsRecordedSteps) {
  Succeed(ProfileArguments(trace_.path(), Path("p"), {"--grad-accum-steps", "3"}));
  const ProfileReader profile = ProfileReader::Open(Path("p"));
  EXPECT_EQ(profile.settings().accumulate_steps, 3);
  ASSERT_EQ(profile.step_count(), 2u);  // the seventh is no whole step
  EXPECT_EQ(profile.step_number(0), 2);
  const StepTables step = profile.Load(1);
  EXPECT_EQ(step.micro_steps, (std::vector<int64_t>{0, 1, 2}));
  ASSERT_EQ(step.files.size(), 3u);
  EXPECT_EQ(step.files[0].name, "step-3.safetensors");
  EXPECT_EQ(step.files[2].name, "step-5.safetensors");
}

TEST_F(ProfileCommand, IsTheSameOnAnyNumberOfThreadsAndOfParts) {
  const Files whole = ProfileBytes(trace_.path());
  EXPECT_EQ(whole.size(), 8u);
  for (const char* threads : {"1", "3"}) {
    EXPECT_TRUE(ProfileBytes(trace_.path(), {"--threads", threads, "--memory", "1"}) == whole);
  }
  for (const char* range : {":1", "4:", "2:3"}) {
    Succeed(ProfileArguments(trace_.path(), Path("p"), {"--steps", range}));
  }
  EXPECT_TRUE(FilesOfProfile(Path("p")) == whole);
}

TEST_F(ProfileCommand, RefusesWrongUsage) {
  const auto arguments = [&](const Arguments& more) {
    return ProfileArguments(trace_.path(), Path("p"), more);
  };
  ExpectFailure(arguments({"--steps", "3"}), 2, {"--steps", "'3'"});
  ExpectFailure(arguments({"--steps", "4:3"}), 2, {"--steps", "ends before"});
  ExpectFailure(arguments({"--scale", "-2"}), 2, {"--scale", "'-2'"});
  ExpectFailure(arguments({"--scaled-format", "fp16"}), 2, {"fp16"});
  ExpectFailure(arguments({"--scaled-format", "fp8-delayed"}), 2, {"earlier steps"});
  ExpectFailure({"profile", trace_.path(), "-o", "-"}, 2, {"standard output"});
  ExpectFailure(ProfileArguments(trace_.path(), trace_.path()), 3, {"folder of something else"});
  ExpectFailure(ProfileArguments(trace_.path(), trace_.StepPath(3)), 2, {"-o", "trace"});
  EXPECT_FALSE(fs::exists(Path("p")));
  Succeed(arguments({}));
  ExpectFailure({"profile", Path("p"), "-o", Path("q")}, 3, {"is a profile already"});
  ExpectFailure({"replay", Path("p"), trace_.path()}, 2, {"a profile is read on its own"});
  ExpectFailure(arguments({"--scale", "3"}), 3, {"profile.json", "another 'mantissas'"});
}

TEST_F(ProfileCommand, SkipsStepsThatAreThere) {
  Continue("");
  const Files whole = FilesOfProfile(Path("p"));
  Continue("skipping 7 steps that are there");
  EXPECT_TRUE(FilesOfProfile(Path("p")) == whole);
  trace_.WriteStep(7);
  fs::remove(Path("p/step-0000000003.npz"));
  Continue("skipping 6 steps that are there");
  EXPECT_EQ(FilesOfProfile(Path("p")).size(), 9u);
  EXPECT_TRUE(FilesOfProfile(Path("p"))["step-0000000003.npz"] == whole.at("step-0000000003.npz"));
  trace_.Remove(0);  // its step stays
  Continue("skipping 7 steps");
  EXPECT_EQ(FilesOfProfile(Path("p")).size(), 9u);
}

TEST_F(ProfileCommand, StepsThatChangedAreReplaced) {
  Continue("");
  const Files whole = FilesOfProfile(Path("p"));
  trace_.WriteStep(2, 9);
  trace_.Touch(4);  // the same content
  Continue("replacing 1 step whose files have changed");
  Files after = FilesOfProfile(Path("p"));
  EXPECT_TRUE(after["step-0000000002.npz"] != whole.at("step-0000000002.npz"));
  EXPECT_TRUE(after["step-0000000004.npz"] == whole.at("step-0000000004.npz"));
  trace_.WriteStep(2);
  trace_.Touch(2);
  Continue("replacing 1 step");
  EXPECT_TRUE(FilesOfProfile(Path("p")) == whole);
}

TEST_F(ProfileCommand, AStepThatFailsLeavesTheOthers) {
  trace_.WriteBytes(3, "damaged");
  ExpectFailure(ProfileArguments(trace_.path(), Path("p")), 3, {"step-3.safetensors"});
  trace_.WriteStep(3);
  EXPECT_EQ(RunCommand(ProfileArguments(trace_.path(), Path("p"))).exit_code, 0);
  EXPECT_TRUE(FilesOfProfile(Path("p")) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileCommand, RestartRemovesOtherSettings) {
  Continue("", {"--tensors", "w1*"});
  Continue("", {"--restart"});
  EXPECT_TRUE(FilesOfProfile(Path("p")) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileCommand, KilledAtAnyMomentGivesTheSameBytes) {
  const WrittenTrace trace(60);
  const Files whole = ProfileBytes(trace.path());
  Arguments arguments = ProfileArguments(trace.path(), Path("k"), {"--quiet"});
  arguments.insert(arguments.begin(), DLSIM_COMMAND);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  for (int moment = 0; moment < 20; ++moment) {
    pid_t process = 0;
    ASSERT_EQ(posix_spawn(&process, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 7 * moment));
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    if (moment % 5 == 4) {
      Succeed(ProfileArguments(trace.path(), Path("k"), {"--quiet"}));
      EXPECT_TRUE(FilesOfProfile(Path("k")) == whole) << moment;
      fs::remove_all(Path("k"));
    }
  }
}

TEST_F(ProfileCommand, ItsSummaryIsJson) {
  const json summary = SucceedJson({"profile", kSingle, "-o", Path("p"), "--scaled-format", "nvfp4",
                                    "--scale", "3", "--scaled-format", "mxfp8", "--json", "-"});
  EXPECT_EQ(summary["schema"], "dlsim.profile-report/1");
  EXPECT_EQ(summary["steps"], 13);
  EXPECT_EQ(summary["last_step"], 377);
  EXPECT_EQ(summary["scaled_formats"], (json{"mxfp8", "nvfp4"}));
  EXPECT_EQ(summary["mantissas"], json{1.5});
}

// Removes what a profile does not tell: comparisons of tune with policies that need the values.
void RemoveRefused(json& of_profile, json& of_trace) {
  if (!of_profile.contains("formats")) return;
  for (size_t f = 0; f < of_profile["formats"].size(); ++f) {
    json& format = of_profile["formats"][f];
    if (!format.contains("comparisons")) continue;
    json& comparisons = format["comparisons"];
    for (size_t i = comparisons.size(); i-- > 0;) {
      if (!comparisons[i].contains("refused")) continue;
      EXPECT_EQ(comparisons[i]["policy"], "deepspeed");
      comparisons.erase(i);
      of_trace["formats"][f]["comparisons"].erase(i);
    }
  }
}

class ProfileAnswers : public ProfileCommand {
 protected:
  // Expects that a command says the same of a trace and of its profile, as far as that can tell.
  void ExpectSame(const std::string& command, const std::string& trace, const std::string& profile,
                  const Arguments& options) {
    Arguments of_trace = {command, trace, "--json", "-"};
    Arguments of_profile = {command, profile, "--json", "-"};
    of_trace.insert(of_trace.end(), options.begin(), options.end());
    of_profile.insert(of_profile.end(), options.begin(), options.end());
    json expected = SucceedJson(of_trace), got = SucceedJson(of_profile);
    EXPECT_EQ(got["trace"]["profile"], true);
    EXPECT_EQ(got["trace"]["trace_bytes"], expected["trace"]["file_bytes"]);
    RemoveRefused(got, expected);
    for (const char* key : {"trace", "notes"}) {
      got.erase(key);
      expected.erase(key);
    }
    EXPECT_EQ(got, expected);
  }
};

TEST_F(ProfileAnswers, AsTheTraceDoes) {
  for (const std::string& trace : {kSingle, kAccumulated, kTraces + "t5-stream"}) {
    SCOPED_TRACE(trace);
    const std::string profile = Path(fs::path(trace).filename());
    Succeed({"profile", trace, "-o", profile, "--scale", "2e15", "--quiet"});
    ExpectSame("replay", trace, profile, {"--policy", "cerebras", "--policy", "torch"});
    ExpectSame("tune", trace, profile, {});
  }
}

TEST_F(ProfileAnswers, AsTheTraceDoesForScaledFormats) {
  const Arguments formats = {"fp8-current", "fp8-block", "mxfp4:rule=even", "nvfp4"};
  Arguments asked;
  for (const std::string& trace : {kTraces + "t5-stream", kAccumulated}) {
    SCOPED_TRACE(trace);
    const std::string profile = Path(fs::path(trace).filename());
    Arguments arguments = {"profile", trace, "-o", profile, "--quiet"};
    asked.clear();
    for (const std::string& format : formats) {
      arguments.insert(arguments.end(), {"--scaled-format", format});
      asked.insert(asked.end(), {"--format", format});
    }
    Succeed(arguments);
    ExpectSame("replay", trace, profile, asked);
  }
}

}  // namespace
}  // namespace dlsim
