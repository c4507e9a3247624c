// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/scratch_directory.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

// A session of its own: what a terminal sends to the others does not reach it. Nothing else stays
// open, so that nobody waits for it.
[[noreturn]] void RemoveAtEndOf(int alive, const std::string& path) {
  setsid();
  dup2(alive, STDIN_FILENO);
  close_range(STDOUT_FILENO, UINT_MAX, 0);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) != 0 && errno == EINTR) {
  }
  std::error_code ignored;
  fs::remove_all(path, ignored);
  _exit(0);
}

std::string ParentOf(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const fs::path path = fs::temp_directory_path(error);
  if (!error) return path.string();
  throw InputError("$TMPDIR", "cannot be used (" + error.message() + ")", "a directory");
}

Error Cannot(const std::string& path, const char* what) {
  return InputError(Printable(path), std::string(what) + " (" + std::strerror(errno) + ")");
}

}  // namespace

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  path_ = ParentOf(parent) + "/dlsim-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) throw Cannot(path_, "cannot be made");
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) == 0) {
    remover_ = fork();
    if (remover_ == 0) {
      close(ends[1]);
      RemoveAtEndOf(ends[0], path_);
    }
    close(ends[0]);
    alive_ = ends[1];
  }
  if (remover_ > 0) return;
  const Error error = Cannot(path_, "cannot be kept");
  rmdir(path_.c_str());
  throw error;
}

ScratchDirectory::~ScratchDirectory() {
  close(alive_);
  while (waitpid(remover_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace dlsim::sim
