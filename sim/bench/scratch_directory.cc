// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/scratch_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

constexpr int kMostTries = 1000;

// What the remover tells, in one piece of a pipe: the path, or why there is none.
struct Made {
  int error = 0;
  std::array<char, PIPE_BUF - sizeof(int)> path{};
};

// Makes the directory, says so, and removes it when the other end of `alive` is closed. In a
// session of its own: what a terminal sends to the others does not reach it. Nothing else stays
// open, so that nobody waits for it.
[[noreturn]] void KeepUntilEndOf(int alive, int told, Made& made) {
  setsid();
  signal(SIGPIPE, SIG_IGN);  // if nobody listens any more
  if (mkdtemp(made.path.data()) == nullptr) made.error = errno;
  const bool is_told = write(told, &made, sizeof(made)) == sizeof(made);
  dup2(alive, STDIN_FILENO);
  close_range(STDOUT_FILENO, UINT_MAX, 0);
  char byte = 0;
  while (is_told && read(STDIN_FILENO, &byte, 1) != 0 && errno == EINTR) {
  }
  // Children of the process that ended are killed a moment later, and may yet make a file.
  std::error_code error;
  for (int i = 0; made.error == 0 && i < kMostTries; ++i) {
    fs::remove_all(made.path.data(), error);
    if (!error) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  _exit(0);
}

std::string ParentOf(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const fs::path path = fs::temp_directory_path(error);
  if (!error) return path.string();
  throw InputError("$TMPDIR", "cannot be used (" + error.message() + ")", "a directory");
}

Error Cannot(const std::string& path, const char* what, int error) {
  return InputError(Printable(path), std::string(what) + " (" + std::strerror(error) + ")");
}

}  // namespace

// The remover makes the directory itself: at no time is there one that nobody would remove.
ScratchDirectory::ScratchDirectory(const std::string& parent) {
  path_ = ParentOf(parent) + "/dlsim-XXXXXX";
  Made made;
  if (path_.size() >= made.path.size()) throw Cannot(path_, "cannot be made", ENAMETOOLONG);
  path_.copy(made.path.data(), path_.size());
  std::array<int, 2> alive{}, told{};
  if (pipe2(alive.data(), O_CLOEXEC) != 0) throw Cannot(path_, "cannot be kept", errno);
  alive_ = alive[1];
  remover_ = pipe2(told.data(), O_CLOEXEC) == 0 ? fork() : -1;
  if (remover_ == 0) {
    close(alive[1]);
    KeepUntilEndOf(alive[0], told[1], made);
  }
  const int failed = errno;
  close(alive[0]);
  if (remover_ < 0) throw Cannot(path_, "cannot be kept", failed);
  close(told[1]);
  ssize_t got = 0;
  while ((got = read(told[0], &made, sizeof(made))) < 0 && errno == EINTR) {
  }
  close(told[0]);
  if (got != sizeof(made)) made.error = EIO;
  if (made.error != 0) {
    End();
    throw Cannot(path_, "cannot be made", made.error);
  }
  path_ = made.path.data();
}

void ScratchDirectory::End() const {
  close(alive_);
  while (waitpid(remover_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

ScratchDirectory::~ScratchDirectory() { End(); }

}  // namespace dlsim::sim
