// SPDX-License-Identifier: Apache-2.0
#include "sim/app/signals.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/temporary_files.h"

namespace dlsim::sim {
namespace {

// Signals that do not end a process by default, that cannot be handled, or that are ignored below.
// All others end it.
constexpr std::array kNotHandled = {SIGKILL, SIGSTOP, SIGCHLD, SIGCONT,  SIGTSTP,
                                    SIGTTIN, SIGTTOU, SIGURG,  SIGWINCH, SIGXFSZ};

std::atomic<bool> may_exit = false;

void Say(std::string_view line) {
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
  Say(IsOutOfMemory(std::current_exception()) ? "dlsim: out of memory\n"
                                              : "dlsim: ended by an unexpected error\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Ends here instead of by an exception: if memory runs out while a value of nlohmann::json
// becomes an object, its destructor follows a null pointer.
[[noreturn]] void OnOutOfMemory() {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) pause();  // another thread is at it
  RemoveTemporaries();
  Say("dlsim: out of memory\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Whatever called exit has said why: OpenMP, which has no code to give.
[[maybe_unused]] void OnExit(int status, void*) {
  if (may_exit) return;
  RemoveTemporaries();
  if (status == EXIT_FAILURE) _exit(static_cast<int>(ErrorKind::kInternal));
}

}  // namespace

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

void InstallExitHandlers() {
  std::set_terminate(OnTerminate);
  std::set_new_handler(OnOutOfMemory);
#ifdef __GLIBC__  // std::atexit does not tell the status
  on_exit(OnExit, nullptr);
#endif
}

void AllowExit() { may_exit = true; }

}  // namespace dlsim::sim
