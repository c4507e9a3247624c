// SPDX-License-Identifier: Apache-2.0
// What dlsim_gpu_check is asked to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dlsim::gpu_check {

// How much is compared; docs/gpu.md has the table.
enum class Effort : uint8_t { kQuick, kDefault, kFull };

struct Options {
  Effort effort = Effort::kDefault;
  std::vector<std::string> groups;  // those to run; empty = all
  int device = 0;
  std::string json;       // where results go, if anywhere
  std::string peers;      // file with timings of other programs; see ReadPeers
  uint64_t inputs = 0;    // of a sweep, at most 2^32
  uint64_t elements = 0;  // of the arrays that are timed, as far as memory allows
  int rounds = 31;        // of the benchmark
  bool help = false;

  bool Wants(const std::string& group) const;
};

// Reads the command line without the program's name. Throws Error (exit code 2).
Options ParseOptions(std::span<const char* const> arguments);

// The text of --help.
const char* HelpText();

}  // namespace dlsim::gpu_check
