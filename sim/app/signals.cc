// SPDX-License-Identifier: Apache-2.0
#include "sim/app/signals.h"

#include <signal.h>
#include <unistd.h>

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

// What ends a process by default, but for the signals of faults in its own code.
constexpr std::array kTerminating = {SIGINT,  SIGTERM,   SIGHUP,  SIGQUIT, SIGPIPE,
                                     SIGALRM, SIGUSR1,   SIGUSR2, SIGXCPU, SIGPROF,
                                     SIGIO,   SIGVTALRM, SIGABRT};

std::atomic<bool> may_exit = false;

void Say(std::string_view line) {
  // Nothing can be done if even this fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// The handler is reset on entry, so the signal acts as by default once this returns.
void OnTermination(int signal) {
  RemoveTemporaries();
  raise(signal);
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
                                              : "dlsim: ended by an error that nothing handles\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Ends here instead of by an exception: if memory is wanting while a value of nlohmann::json
// becomes an object, its destructor follows a null pointer.
[[noreturn]] void OnOutOfMemory() {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) pause();  // another thread is at it
  RemoveTemporaries();
  Say("dlsim: out of memory\n");
  _exit(static_cast<int>(ErrorKind::kInternal));
}

// Whatever called exit has said why. MPI has a code to give, OpenMP has none.
[[maybe_unused]] void OnExit(int status, void*) {
  if (may_exit) return;
  RemoveTemporaries();
  if (status == EXIT_FAILURE) _exit(static_cast<int>(ErrorKind::kInternal));
}

}  // namespace

void InstallSignalHandlers() {
  for (const int signal : kTerminating) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // as nohup asks
    struct sigaction action = {};
    action.sa_handler = OnTermination;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(signal, &action, nullptr);
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
