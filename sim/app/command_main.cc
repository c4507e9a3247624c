// SPDX-License-Identifier: Apache-2.0
// The dlsim command as a process: standard streams, signals, exit codes.
#include "sim/app/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "src/base/file.h"

namespace dlsim::sim {
namespace {

// Otherwise the first file that is opened would be standard output, and be written over by text.
void OpenStandardDescriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest that is free is taken, which is this one.
    if (open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0) _exit(70);
  }
}

constexpr const char* kEraseLine = "\r\x1b[K";

void PrintOnError(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// The standard streams of a process as the engine's caller. Progress and what is said go to
// standard error. Progress is one line, redrawn on a terminal.
class StandardCaller final : public Caller {
 public:
  StandardCaller() {
    input = STDIN_FILENO;
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    const char* const term = std::getenv("TERM");
    const bool is_dumb = term != nullptr && std::string_view(term) == "dumb";
    replaces_progress = isatty(STDERR_FILENO) != 0 && !is_dumb;
  }
  void Write(std::string_view bytes) override {
    if (WriteBytes(STDOUT_FILENO, bytes)) return;
    throw InputError("standard output",
                     std::string("cannot be written (") + std::strerror(errno) + ")");
  }
  void Say(std::string_view line) override {
    PrintOnError(command + ": " + std::string(line) + "\n");
  }
  void ShowProgress(uint64_t, uint64_t, const std::string& line) override {
    PrintOnError(replaces_progress ? kEraseLine + line : line + "\n");
  }
  void EndProgress() override {
    if (replaces_progress) PrintOnError(kEraseLine);
  }
};

// Signals that do not end a process by default, that cannot be handled, or that are ignored below.
// All others end it.
constexpr std::array kNotHandled = {SIGKILL, SIGSTOP, SIGCHLD, SIGCONT,  SIGTSTP,
                                    SIGTTIN, SIGTTOU, SIGURG,  SIGWINCH, SIGXFSZ};

std::atomic<bool> may_exit = false;  // main is about to return: what comes then is no error

void SayAtOnce(std::string_view line) {
  // Nothing can be done if even this fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// All signals are blocked meanwhile: until the files are gone none ends the process. Then this one
// acts as by default.
void OnTermination(int number) {
  RemoveTemporaries();
  signal(number, SIG_DFL);
  raise(number);
}

bool IsOutOfMemory(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
  }
  return false;
}

[[noreturn]] void OnTerminate() {
  RemoveTemporaries();
  SayAtOnce(IsOutOfMemory(std::current_exception()) ? "dlsim: out of memory\n"
                                                    : "dlsim: ended by an unexpected error\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Ends here instead of by an exception: if memory runs out while a value of nlohmann::json
// becomes an object, its destructor follows a null pointer.
[[noreturn]] void OnOutOfMemory() {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) pause();  // another thread is at it
  RemoveTemporaries();
  SayAtOnce("dlsim: out of memory\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Whatever called exit has said why: OpenMP, which has no code to give.
[[maybe_unused]] void OnExit(int status, void*) {
  if (may_exit) return;
  RemoveTemporaries();
  if (status == EXIT_FAILURE) _exit(static_cast<int>(ErrorKind::kInternal));
}

// Signals that end a process remove temporary outputs and then act as by default, unless they were
// ignored. An output beyond the limit on the size of files is reported as bad input (exit code 3).
void InstallSignalHandlers() {
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (std::ranges::find(kNotHandled, number) != kNotHandled.end()) continue;
    struct sigaction before = {};
    // The C library keeps some for itself, nohup has one ignored, a sanitizer handles faults.
    if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action = {};
    action.sa_handler = OnTermination;
    sigfillset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
  signal(SIGXFSZ, SIG_IGN);  // writing beyond a limit on the size of files then fails as any write
}

// An exception that nobody catches, and a library that ends the process, as OpenMP does when it can
// start no thread, are internal errors (exit code 70).
void InstallExitHandlers() {
  std::set_terminate(OnTerminate);
  std::set_new_handler(OnOutOfMemory);
#ifdef __GLIBC__  // std::atexit does not tell the status
  on_exit(OnExit, nullptr);
#endif
}

// How OpenMP's threads wait between loops: asleep after some microseconds, unless the user has said
// how. By default they spin for milliseconds, which steals the time of whatever else runs: on a
// busy machine they take three times the processor time of the work.
//
// OpenMP reads the environment once. libgomp does so in a constructor, which is part of the program
// (sim/CMakeLists.txt) and comes after this one; LLVM's library does before the first loop.
constexpr int kFirst = 101;

[[gnu::constructor(kFirst)]] void WaitWithoutSpinning() {
  for (const char* const name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
    if (std::getenv(name) != nullptr) return;
  }
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GOMP_SPINCOUNT", "1000", 0);
}

}  // namespace

int CommandMain(int argc, char** argv) {
  OpenStandardDescriptors();
  InstallSignalHandlers();
  InstallExitHandlers();
  int exit_code = static_cast<int>(ErrorKind::kInternal);
  try {
    StandardCaller caller;
    const CallerScope scope(caller);
    exit_code = RunCommand(argc, argv);
  } catch (const std::bad_alloc&) {  // before the command was known, or while it was named
    std::fputs("dlsim: out of memory\n", stderr);
  }
  may_exit = true;
  return exit_code;
}

}  // namespace dlsim::sim
