// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

constexpr int kCannotRun = 127;  // as shells do

Error SystemError(const std::string& what) {
  return Error(ErrorKind::kInternal, what, std::strerror(errno));
}

std::vector<std::string> MinimalEnvironment() {
  std::vector<std::string> environment = {"LC_ALL=C"};
  for (const char* const name : {"PATH", "LD_LIBRARY_PATH"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr) environment.push_back(std::string(name) + "=" + value);
  }
  return environment;
}

std::vector<std::string> InheritedEnvironment(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string own = *entry;
    const std::string name = own.substr(0, own.find('=') + 1);
    const bool is_replaced = std::ranges::any_of(
        variables, [&](const std::string& variable) { return variable.starts_with(name); });
    if (!is_replaced) environment.push_back(own);
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Becomes the program; between fork and exec, so only async-signal-safe calls.
[[noreturn]] void Become(char** arguments, char** environment, pid_t parent, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotRun);  // it ended before the line above
  const int null = open("/dev/null", O_RDONLY);
  if (dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
      dup2(err, STDERR_FILENO) >= 0) {
    execve(arguments[0], arguments, environment);
  }
  _exit(kCannotRun);
}

int WaitFor(pid_t process, rusage& usage) {
  int status = 0;
  while (wait4(process, &status, 0, &usage) < 0) {
    if (errno != EINTR) throw SystemError("wait4");
  }
  return status;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Programs end a failure with the line that says why.
std::string LastLine(const std::string& text) {
  std::istringstream stream(text);
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != line.npos) last = line;
  }
  return last;
}

// Usage and input errors of a program of dlsim stay what they are.
void RequireSuccess(const std::string& program, int status, const std::string& err) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  const std::string place = Printable(std::filesystem::path(program).filename().string());
  if (WIFSIGNALED(status)) {
    throw Error(ErrorKind::kInternal, place,
                std::string("ended by a signal (") + strsignal(WTERMSIG(status)) + ")");
  }
  const int code = WEXITSTATUS(status);
  const std::string last = LastLine(err);
  if (code == kCannotRun && last.empty()) throw InputError(Printable(program), "cannot be run");
  const bool is_own =
      code == static_cast<int>(ErrorKind::kUsage) || code == static_cast<int>(ErrorKind::kInput);
  throw Error(is_own ? static_cast<ErrorKind>(code) : ErrorKind::kInternal, place,
              "failed with exit code " + std::to_string(code) +
                  (last.empty() ? "" : ": " + Printable(last)));
}

MeasuredChild Run(std::vector<std::string> arguments, std::vector<std::string> environment) {
  using Clock = std::chrono::steady_clock;
  const MemoryFile out, err;
  const std::vector<char*> argv = Pointers(arguments), envp = Pointers(environment);
  const pid_t parent = getpid();
  const Clock::time_point begin = Clock::now();
  const pid_t process = fork();
  if (process < 0) throw SystemError("fork");
  if (process == 0) {
    Become(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), parent,
           out.descriptor(), err.descriptor());
  }
  rusage usage = {};
  const int status = WaitFor(process, usage);
  MeasuredChild child;
  child.wall_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  child.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  child.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  RequireSuccess(arguments[0], status, err.Read());
  child.out = out.Read();
  return child;
}

}  // namespace

MemoryFile::MemoryFile() : descriptor_(memfd_create("dlsim", 0)) {
  if (descriptor_ < 0) throw SystemError("memfd_create");
}

MemoryFile::~MemoryFile() { close(descriptor_); }

std::string MemoryFile::Read() const {
  std::string text;
  std::array<char, 65536> block;
  for (off_t offset = 0;;) {
    const ssize_t count = pread(descriptor_, block.data(), block.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("pread");
    if (count == 0) return text;
    text.append(block.data(), static_cast<size_t>(count));
    offset += count;
  }
}

std::string RunChild(const std::vector<std::string>& arguments, ChildEnvironment environment) {
  return Run(arguments, environment == ChildEnvironment::kMinimal ? MinimalEnvironment()
                                                                  : InheritedEnvironment({}))
      .out;
}

MeasuredChild MeasureChild(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& variables) {
  return Run(arguments, InheritedEnvironment(variables));
}

std::optional<std::string> FindInPath(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + program;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

}  // namespace dlsim::sim
