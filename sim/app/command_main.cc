// SPDX-License-Identifier: Apache-2.0
#include "sim/app/command_main.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "sim/app/run_command.h"
#include "sim/app/signals.h"
#include "sim/base/caller.h"
#include "sim/base/write_bytes.h"

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
  StandardCaller();
  void Write(std::string_view bytes) override;
  void Say(std::string_view line) override;
  void ShowProgress(uint64_t done, uint64_t total, const std::string& line) override;
  void EndProgress() override;
};

StandardCaller::StandardCaller() {
  input = STDIN_FILENO;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  const char* const term = std::getenv("TERM");
  const bool is_dumb = term != nullptr && std::string_view(term) == "dumb";
  replaces_progress = isatty(STDERR_FILENO) != 0 && !is_dumb;
}

void StandardCaller::Write(std::string_view bytes) {
  if (WriteBytes(STDOUT_FILENO, bytes)) return;
  throw InputError("standard output",
                   std::string("cannot be written (") + std::strerror(errno) + ")");
}

void StandardCaller::Say(std::string_view line) {
  PrintOnError(command + ": " + std::string(line) + "\n");
}

void StandardCaller::ShowProgress(uint64_t, uint64_t, const std::string& line) {
  PrintOnError(replaces_progress ? kEraseLine + line : line + "\n");
}

void StandardCaller::EndProgress() {
  if (replaces_progress) PrintOnError(kEraseLine);
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
  AllowExit();
  return exit_code;
}

}  // namespace dlsim::sim
