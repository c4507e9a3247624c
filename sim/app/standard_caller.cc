// SPDX-License-Identifier: Apache-2.0
#include "sim/app/standard_caller.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dlsim/error.h"
#include "sim/base/write_bytes.h"

namespace dlsim::sim {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

void PrintOnError(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

void StandardCaller::Write(const std::string&, std::string_view bytes) {
  if (WriteBytes(STDOUT_FILENO, bytes)) return;
  throw InputError("standard output",
                   std::string("cannot be written (") + std::strerror(errno) + ")");
}

void StandardCaller::Say(std::string_view line) {
  PrintOnError(command + ": " + std::string(line) + "\n");
}

int StandardCaller::InputDescriptor() const { return STDIN_FILENO; }

size_t StandardCaller::Columns() const {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool StandardCaller::ReplacesProgress() const {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (term == nullptr || std::string_view(term) != "dumb");
}

void StandardCaller::ShowProgress(uint64_t, uint64_t, const std::string& line) {
  PrintOnError(ReplacesProgress() ? kEraseLine + line : line + "\n");
}

void StandardCaller::EndProgress() {
  if (ReplacesProgress()) PrintOnError(kEraseLine);
}

}  // namespace dlsim::sim
