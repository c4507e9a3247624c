// SPDX-License-Identifier: Apache-2.0
// dlsim profile that was killed or failed goes on to the bytes of an uninterrupted run, and reads
// no step twice.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/profile_file.h"
#include "tests/support/run_command.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

// Starts the command and kills it once a file has reached a size. Returns whether it was killed
// before it ended.
bool KillWhenWritten(Arguments arguments, const std::string& file, uintmax_t bytes) {
  arguments.insert(arguments.begin(), DLSIM_COMMAND);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = 0;
  if (posix_spawn(&process, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
    throw std::runtime_error("cannot run " + arguments[0]);
  }
  int status = 0;
  std::error_code missing;
  while (waitpid(process, &status, WNOHANG) == 0) {
    const uintmax_t size = fs::file_size(file, missing);
    if (missing || size < bytes) continue;
    kill(process, SIGKILL);
    waitpid(process, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  return false;
}

// A profile of which `damaged` was not read because it is no step; its partial file stays.
class ProfileResume : public testing::Test {
 protected:
  void FailAt(int damaged) {
    const std::string good = ReadBytes(trace_.StepPath(damaged));
    trace_.WriteBytes(damaged, "damaged");
    ExpectFailure(ProfileArguments(trace_.path(), output_), 3, {WrittenTrace::StepName(damaged)});
    EXPECT_FALSE(fs::exists(output_));
    EXPECT_TRUE(fs::exists(output_ + ".partial"));
    trace_.WriteBytes(damaged, good);
  }

  // Runs to the end; returns the remark about what was there.
  std::string Finish(const Arguments& more = {}) {
    const CommandResult result = RunCommand(ProfileArguments(trace_.path(), output_, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(fs::exists(output_ + ".partial"));
    return result.err;
  }

  static std::string Remark(int kept, int of, int to_read) {
    return "dlsim profile: note: resuming: " + std::to_string(kept) + " of " + std::to_string(of) +
           " steps done before are kept, " + std::to_string(to_read) + " to go\n";
  }

  WrittenTrace trace_{9, 4, 40'000};  // files so large that only samples of them are hashed
  TempDir dir_;
  std::string output_ = dir_.path() + "/run.dlprof";
};

TEST_F(ProfileResume, KilledAtTwentyMomentsGivesTheSameBytes) {
  const WrittenTrace trace(300);
  const std::string whole = ProfileBytes(trace.path());
  const Arguments arguments = ProfileArguments(trace.path(), output_, {"--quiet"});
  std::mt19937 random(5);
  std::vector<uintmax_t> moments;
  for (int i = 0; i < 20; ++i) moments.push_back(random() % (whole.size() * 9 / 10));
  std::ranges::sort(moments);
  int killed = 0;
  for (const uintmax_t bytes : moments) {
    killed += KillWhenWritten(arguments, output_ + ".partial", bytes) ? 1 : 0;
    EXPECT_FALSE(fs::exists(output_)) << bytes;
  }
  EXPECT_EQ(killed, 20);
  const CommandResult last = RunCommand(ProfileArguments(trace.path(), output_));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_NE(last.err.find("are kept"), std::string::npos) << last.err;
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

TEST_F(ProfileResume, FinishedStepsAreNotReadAgain) {
  const std::string whole = ProfileBytes(trace_.path());
  FailAt(5);
  for (int step = 0; step < 5; ++step) trace_.CorruptUnnoticed(step);
  EXPECT_EQ(Finish(), Remark(5, 5, 4));
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

TEST_F(ProfileResume, AChangedFileAndAllBehindItAreReadAgain) {
  FailAt(5);
  trace_.WriteStep(2, 77);
  trace_.Touch(2);
  EXPECT_EQ(Finish(), Remark(2, 5, 7));
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileResume, AnotherSizeIsAChange) {
  FailAt(5);
  const fs::file_time_type time = fs::last_write_time(trace_.StepPath(3));
  trace_.WriteBytes(3, ReadBytes(WrittenTrace(4, 3).StepPath(3)));
  fs::last_write_time(trace_.StepPath(3), time);
  EXPECT_EQ(Finish(), Remark(3, 5, 6));
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path()));
}

// Runs of one model look alike: step numbers, names, sizes and, if they were recorded before,
// times.
TEST_F(ProfileResume, StepsOfATraceThatLooksAlikeAreNotTakenOver) {
  const WrittenTrace other(9, 4, 40'000);
  const std::string whole = ProfileBytes(other.path());
  for (int step = 0; step < 9; ++step) trace_.WriteStep(step, 77);
  FailAt(5);
  const std::string before = ReadBytes(output_ + ".partial");
  ExpectFailure(ProfileArguments(other.path(), output_), 3,
                {"step-0.safetensors", "step 0", "holds something else", "--restart"});
  EXPECT_EQ(ReadBytes(output_ + ".partial"), before);
  Succeed(ProfileArguments(other.path(), output_, {"--restart"}));
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

TEST_F(ProfileResume, ExtendDoesNotMixTracesThatLookAlike) {
  const WrittenTrace other(12, 4, 40'000);
  for (int step = 0; step < 9; ++step) trace_.WriteStep(step, 77);
  Succeed(ProfileArguments(trace_.path(), output_));
  const std::string before = ReadBytes(output_);
  ExpectFailure(ProfileArguments(other.path(), output_, {"--extend"}), 3,
                {"step-0.safetensors", "holds something else"});
  EXPECT_TRUE(ReadBytes(output_) == before);
  EXPECT_FALSE(fs::exists(output_ + ".partial"));
}

// As `cp -p` and `rsync -a` do.
TEST_F(ProfileResume, AFileRewrittenWithItsOldTimeIsNoticed) {
  FailAt(5);
  trace_.CorruptAt(3, ReadBytes(trace_.StepPath(3)).size() - 400);
  ExpectFailure(ProfileArguments(trace_.path(), output_), 3,
                {"step-3.safetensors", "step 3", "holds something else"});
}

TEST_F(ProfileResume, AnotherTraceBeginsAnew) {
  FailAt(5);
  trace_.Remove(0);
  EXPECT_EQ(Finish(), Remark(0, 5, 8));
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileResume, RestartIgnoresWhatIsThere) {
  FailAt(5);
  EXPECT_EQ(Finish({"--restart"}), "");
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileResume, OtherSettingsBeginAnewWithARemark) {
  FailAt(5);
  const std::string err = Finish({"--tensors", "w0*"});
  EXPECT_NE(err.find("run.dlprof.partial had other settings"), std::string::npos) << err;
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path(), {"--tensors", "w0*"}));
}

TEST_F(ProfileResume, ExtendReadsNewStepsOnly) {
  Succeed(ProfileArguments(trace_.path(), output_));
  const std::string before = ReadBytes(output_);
  for (int step = 9; step < 12; ++step) trace_.WriteStep(step);
  const std::string whole = ProfileBytes(trace_.path());
  for (int step = 0; step < 9; ++step) trace_.CorruptUnnoticed(step);
  EXPECT_EQ(Finish({"--extend"}), Remark(9, 9, 3));
  EXPECT_TRUE(ReadBytes(output_) == whole);
  EXPECT_EQ(Finish({"--extend"}), Remark(12, 12, 0));
  EXPECT_TRUE(ReadBytes(output_) == whole);
  EXPECT_TRUE(before != whole);
}

TEST_F(ProfileResume, ExtendWithoutAProfileMakesOne) {
  EXPECT_EQ(Finish({"--extend"}), "");
  EXPECT_TRUE(ReadBytes(output_) == ProfileBytes(trace_.path()));
}

TEST_F(ProfileResume, ExtendKeepsStepsWhoseFilesAreGone) {
  for (int step = 9; step < 12; ++step) trace_.WriteStep(step);
  const std::string whole = ProfileBytes(trace_.path());
  for (int step = 9; step < 12; ++step) trace_.Remove(step);
  Succeed(ProfileArguments(trace_.path(), output_));
  for (int step = 0; step < 8; ++step) trace_.Remove(step);
  for (int step = 9; step < 12; ++step) trace_.WriteStep(step);
  EXPECT_EQ(Finish({"--extend"}), Remark(9, 9, 3));
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

TEST_F(ProfileResume, ExtendLosesNoStepThatCannotBeReadAgain) {
  Succeed(ProfileArguments(trace_.path(), output_));
  const std::string before = ReadBytes(output_);
  trace_.Touch(3);
  trace_.Remove(7);
  ExpectFailure(ProfileArguments(trace_.path(), output_, {"--extend"}), 3,
                {"step 3", "no longer holds step 7", "--extend"});
  EXPECT_TRUE(ReadBytes(output_) == before);
}

TEST_F(ProfileResume, ExtendRefusesOtherSettings) {
  Succeed(ProfileArguments(trace_.path(), output_));
  const std::string before = ReadBytes(output_);
  ExpectFailure(ProfileArguments(trace_.path(), output_, {"--extend", "--tensors", "w0*"}), 3,
                {"run.dlprof"});
  EXPECT_TRUE(ReadBytes(output_) == before);
}

// A limit on the size of files stands for a full device: what was there stays, and what is
// complete is not lost.
TEST_F(ProfileResume, AFullDeviceLosesNothing) {
  if (DLSIM_SANITIZE == std::string_view("thread")) {
    GTEST_SKIP() << "the sanitizer keeps what it knows in a file beyond the limit";
  }
  const std::string whole = ProfileBytes(trace_.path());
  dir_.Write("run.dlprof", "an older result");
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = whole.size() * 2 / 3;
  setrlimit(RLIMIT_FSIZE, &limit);
  const CommandResult result = RunCommand(ProfileArguments(trace_.path(), output_));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(Lines(result.err).size(), 1u) << result.err;
  EXPECT_NE(result.err.find("run.dlprof: cannot be written (File too large)"), std::string::npos)
      << result.err;
  EXPECT_EQ(ReadBytes(output_), "an older result");
  const std::string err = Finish();
  EXPECT_NE(err.find(" steps done before are kept"), std::string::npos) << err;
  EXPECT_EQ(err.find(" 0 of"), std::string::npos) << err;
  EXPECT_TRUE(ReadBytes(output_) == whole);
}

TEST_F(ProfileResume, ATargetThatCannotBeWrittenIsOneLine) {
  ExpectFailure(ProfileArguments(trace_.path(), dir_.path()), 3, {dir_.path(), "directory"});
  ExpectFailure(ProfileArguments(trace_.path(), dir_.path() + "/none/run.dlprof"), 3,
                {"run.dlprof: cannot be written"});
  ExpectFailure(ProfileArguments(trace_.path(), "/proc/run.dlprof"), 3,
                {"/proc/run.dlprof: cannot be written"});
  ExpectFailure(ProfileArguments(trace_.path(), "/dev/full"), 3, {"/dev/full"});
}

TEST_F(ProfileResume, AStepThatFailsLeavesTheOlderResult) {
  dir_.Write("run.dlprof", "an older result");
  trace_.WriteBytes(8, "damaged");
  ExpectFailure(ProfileArguments(trace_.path(), output_), 3, {"step-8.safetensors"});
  EXPECT_EQ(ReadBytes(output_), "an older result");
}

}  // namespace
}  // namespace dlsim
