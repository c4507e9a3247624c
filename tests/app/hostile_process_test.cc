// SPDX-License-Identifier: Apache-2.0
// The command in a process that lacks what processes have: open descriptors, threads, memory,
// stack.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

// Runs a line of the shell, in which $0 is the command, $1 a trace and $2 a directory.
CommandResult RunShell(const std::string& line, const WrittenTrace& trace, const TempDir& dir) {
  return RunProgram("/bin/sh", {"-c", line, DLSIM_COMMAND, trace.path(), dir.path()});
}

size_t FilesIn(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), {}));
}

TEST(HostileProcess, ClosedStandardDescriptorsDoNotReachTheProfile) {
  const WrittenTrace trace(5);
  const auto whole = ProfileBytes(trace.path());
  const std::string line = "exec \"$0\" profile \"$1\" -o \"$2/p\" ";
  for (const char* closed : {">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", "<&- >&-"}) {
    const TempDir dir;
    const CommandResult result = RunShell(line + closed, trace, dir);
    EXPECT_EQ(result.exit_code, 0) << closed << result.err;
    EXPECT_TRUE(FilesOfProfile(dir.path() + "/p") == whole) << closed;
  }
}

TEST(HostileProcess, ClosedStandardErrorTakesNoFile) {
  const WrittenTrace trace(2);
  const TempDir dir;
  const CommandResult result =
      RunShell("exec \"$0\" replay \"$1\" --json \"$2/r.json\" --policy none 2>&-", trace, dir);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(FilesIn(dir.path()), 0u);
}

#ifndef __clang__  // LLVM's library tells how threads wait only when it starts some
TEST(Threads, SleepWhileTheyWaitUnlessTheUserSaysHow) {
  const WrittenTrace trace(1);
  const TempDir dir;
  const auto tells = [&](const std::string& variables, const std::string& word) {
    const std::string line =
        "exec env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u KMP_BLOCKTIME OMP_DISPLAY_ENV=verbose ";
    const CommandResult result = RunShell(line + variables + " \"$0\" formats", trace, dir);
    return result.err.find(word) != std::string::npos;
  };
  if (!tells("", "_OPENMP")) GTEST_SKIP() << "built without OpenMP";
  EXPECT_TRUE(tells("", "GOMP_SPINCOUNT = '1000'"));
  EXPECT_TRUE(tells("GOMP_SPINCOUNT=77", "GOMP_SPINCOUNT = '77'"));
  EXPECT_FALSE(tells("OMP_WAIT_POLICY=active", "GOMP_SPINCOUNT = '1000'"));
}
#endif

// The superuser has no limit on processes: then another user runs the command. A sanitizer would
// look for leaks by a process of its own, which is one too many.
TEST(HostileProcess, WithoutThreadsOneDoesTheWork) {
  const WrittenTrace trace(5);
  const TempDir dir;
  fs::permissions(trace.path(), fs::perms(0755));
  const std::string user = geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups " : "";
  const std::string run = "export OMP_NUM_THREADS=4 ASAN_OPTIONS=detect_leaks=0; exec " + user;
  const std::string replay = " \"$0\" replay \"$1\" --json -";
  const CommandResult many = RunShell(run + replay, trace, dir);
  if (many.exit_code != 0) GTEST_SKIP() << "no other user can run the command: " << many.err;
  const CommandResult one = RunShell(run + "prlimit --nproc=1" + replay, trace, dir);
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(one.out, many.out);
}

TEST(HostileProcess, AProfileWithoutThreadsIsTheSame) {
  const WrittenTrace trace(5);
  const auto whole = ProfileBytes(trace.path());
  const TempDir dir;
  fs::permissions(trace.path(), fs::perms(0755));
  fs::permissions(dir.path(), fs::perms(0777));
  const std::string user = geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups " : "";
  const CommandResult result = RunShell("export ASAN_OPTIONS=detect_leaks=0; exec " + user +
                                            "prlimit --nproc=1 \"$0\" profile \"$1\" -o \"$2/p\"",
                                        trace, dir);
  if (result.exit_code == 126) GTEST_SKIP() << "no other user can run the command: " << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(FilesOfProfile(dir.path() + "/p") == whole);
}

// Whatever fails because memory runs out, a thread included: one line, and nothing is left. Before
// main, the loader and libraries speak for themselves.
TEST(HostileProcess, TooLittleMemoryIsOneLine) {
  if (std::string(DLSIM_SANITIZE) != "") GTEST_SKIP() << "sanitizers need memory";
  const WrittenTrace trace(3);
  for (int kilobytes = 8'000; kilobytes <= 64'000; kilobytes += 1'000) {
    const TempDir dir;
    const std::string limit =
        "ulimit -c 0; ulimit -v " + std::to_string(kilobytes) + "; exec \"$0\" ";
    const int loads = RunShell(limit + "formats", trace, dir).exit_code;
    if (loads != 0 && loads != 70) continue;
    const CommandResult result =
        RunShell("export OMP_NUM_THREADS=2; " + limit +
                     "replay \"$1\" --json \"$2/r.json\" --csv \"$2/r.csv\" --quiet",
                 trace, dir);
    SCOPED_TRACE(std::to_string(kilobytes) + " kB: " + result.err);
    EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 70) << result.exit_code;
    EXPECT_EQ(Lines(result.err).size(), result.exit_code == 0 ? 0u : 1u);
    EXPECT_EQ(FilesIn(dir.path()), result.exit_code == 0 ? 2u : 0u);
  }
}

}  // namespace
}  // namespace dlsim
