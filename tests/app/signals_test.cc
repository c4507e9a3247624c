// SPDX-License-Identifier: Apache-2.0
// How the command ends when a signal arrives or a file is cut.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

constexpr int kSteps = 20;

// A replay that is stopped in the middle: nobody reads the pipe into which it writes its rows.
class BlockedReplay {
 public:
  BlockedReplay() {
    std::vector<BuiltTensor> tensors;
    for (int t = 0; t < 100; ++t) tensors.push_back(FloatTensor("w" + std::to_string(t), {1.0f}));
    for (int step = 0; step < kSteps; ++step) {
      trace_.Write("step-" + std::to_string(step) + ".safetensors", BuildSafetensors(tensors));
    }
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    pipe_ = ends[0];
    capacity_ = fcntl(pipe_, F_SETPIPE_SZ, 4096);
    Spawn(ends[1]);
    close(ends[1]);
    WaitUntilFull();
  }
  ~BlockedReplay() { CloseReader(); }
  BlockedReplay(const BlockedReplay&) = delete;
  BlockedReplay& operator=(const BlockedReplay&) = delete;

  pid_t process() const { return process_; }
  const TempDir& trace() const { return trace_; }
  const TempDir& results() const { return results_; }
  std::string err() const { return ReadBytes(logs_.path() + "/err"); }

  void CloseReader() {
    if (pipe_ >= 0) close(pipe_);
    pipe_ = -1;
  }

  // Reads the pipe to its end and returns the status of the process.
  int Finish() {
    std::array<char, 4096> ignored;
    while (read(pipe_, ignored.data(), ignored.size()) > 0) continue;
    int status = 0;
    waitpid(process_, &status, 0);
    return status;
  }

 private:
  void Spawn(int output) {
    const std::string err = logs_.path() + "/err";
    Arguments arguments = {DLSIM_COMMAND,
                           "replay",
                           trace_.path(),
                           "--csv",
                           "-",
                           "--json",
                           results_.path() + "/r.json"};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
    const int failed = posix_spawn(&process_, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) throw std::runtime_error("cannot run " + arguments[0]);
  }

  void WaitUntilFull() {
    for (int bytes = 0; bytes < capacity_;) {
      pollfd event = {.fd = pipe_, .events = POLLIN, .revents = 0};
      if (poll(&event, 1, 30'000) != 1) throw std::runtime_error("no output");
      if ((event.revents & POLLIN) == 0) throw std::runtime_error("ended early: " + err());
      ioctl(pipe_, FIONREAD, &bytes);
    }
  }

  TempDir trace_, results_, logs_;
  int pipe_ = -1;
  int capacity_ = 0;
  pid_t process_ = 0;
};

TEST(Signals, RemoveTemporaryOutputsAndEndTheCommand) {
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU, SIGPROF,
        SIGVTALRM, SIGABRT, SIGPWR, SIGSTKFLT, SIGSYS, SIGTRAP, SIGBUS, SIGRTMIN, SIGRTMAX}) {
    SCOPED_TRACE(strsignal(signal));
    BlockedReplay replay;
    EXPECT_FALSE(std::filesystem::is_empty(replay.results().path()));
    kill(replay.process(), signal);
    const int status = replay.Finish();
    ASSERT_TRUE(WIFSIGNALED(status)) << replay.err();
    EXPECT_EQ(WTERMSIG(status), signal);
    EXPECT_TRUE(std::filesystem::is_empty(replay.results().path()));
  }
}

// As `timeout` sends them: to its child, and at once to the child's group.
TEST(Signals, OnesThatFollowEachOtherLeaveNoTemporaryOutput) {
  for (const int signal : {SIGHUP, SIGTERM, SIGPIPE}) {
    for (int i = 0; i < 4; ++i) {
      SCOPED_TRACE(strsignal(signal));
      BlockedReplay replay;
      kill(replay.process(), signal);
      kill(replay.process(), signal);
      kill(replay.process(), SIGTERM);
      EXPECT_TRUE(WIFSIGNALED(replay.Finish())) << replay.err();
      EXPECT_TRUE(std::filesystem::is_empty(replay.results().path()));
    }
  }
}

TEST(Signals, AReaderThatLeavesEndsTheCommandWithoutATrace) {
  BlockedReplay replay;
  replay.CloseReader();
  const int status = replay.Finish();
  ASSERT_TRUE(WIFSIGNALED(status)) << replay.err();
  EXPECT_EQ(WTERMSIG(status), SIGPIPE);
  EXPECT_TRUE(std::filesystem::is_empty(replay.results().path()));
}

TEST(Signals, ACutFileIsBadInput) {
  BlockedReplay replay;
  for (int step = 0; step < kSteps; ++step) {
    const std::string name = "step-" + std::to_string(step) + ".safetensors";
    ASSERT_EQ(truncate((replay.trace().path() + "/" + name).c_str(), 0), 0);
  }
  const int status = replay.Finish();
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3);
  const std::string err = replay.err();
  EXPECT_TRUE(err.starts_with("dlsim replay: " + replay.trace().path() + "/step-")) << err;
  // Some steps were open, and others not yet.
  EXPECT_TRUE(err.find(": was cut while being read, expected ") != err.npos ||
              err.find(": is not a safetensors file, expected ") != err.npos)
      << err;
  EXPECT_EQ(err.find('\n'), err.size() - 1) << err;
  EXPECT_TRUE(std::filesystem::is_empty(replay.results().path()));
}

}  // namespace
}  // namespace dlsim
