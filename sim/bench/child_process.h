// SPDX-License-Identifier: Apache-2.0
// Programs that a command runs, and the files in memory through which they answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dlsim::sim {

// A file without a name, which child processes inherit: however this process ends, nothing is left.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  // The name under which a child opens it.
  std::string path() const { return "/dev/fd/" + std::to_string(descriptor_); }
  std::string Read() const;

 private:
  int descriptor_;
};

enum class ChildEnvironment {
  kInherited,
  // Only what programs need to start: the size of the environment moves the stack.
  kMinimal,
};

// Runs a program and returns its standard output. Throws Error, with the last line that it wrote to
// standard error, if it cannot be run, fails or is ended by a signal. The child is ended when this
// process ends.
std::string RunChild(const std::vector<std::string>& arguments, ChildEnvironment environment);

// What a program wrote to standard output, and what it took: its own processor time, that of all
// its threads, and the most memory that it held.
struct MeasuredChild {
  std::string out;
  double wall_seconds = 0, cpu_seconds = 0;
  uint64_t peak_bytes = 0;
};

// The same with `variables`, NAME=VALUE, in the place of those of the environment.
MeasuredChild MeasureChild(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& variables);

// Returns the path of a program that PATH finds.
std::optional<std::string> FindInPath(const std::string& program);

}  // namespace dlsim::sim
