// SPDX-License-Identifier: Apache-2.0
#include "sim/app/command_main.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "dlsim/error.h"
#include "sim/app/run_command.h"
#include "sim/app/signals.h"
#include "sim/app/standard_caller.h"
#include "sim/app/waiting_threads.h"

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

}  // namespace

int CommandMain(int argc, char** argv) {
  OpenStandardDescriptors();
  InstallSignalHandlers();
  InstallExitHandlers();
  int exit_code = static_cast<int>(ErrorKind::kInternal);
  try {
    WaitWithoutSpinning(argc, argv);
    StandardCaller caller;
    const CallerScope scope(caller);
    exit_code = RunCommand(argc, argv);
  } catch (const std::bad_alloc&) {  // before the command was known, or while it was named
    std::fputs("dlsim: out of memory\n", stderr);
  }
  AllowExit();
  return exit_code;
}

}  // namespace dlsim::sim
