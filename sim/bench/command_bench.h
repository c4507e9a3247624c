// SPDX-License-Identifier: Apache-2.0
// Times whole commands on made-up traces, each beside its limit, plain reading of the same files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "sim/base/json_value.h"
#include "sim/bench/read_limit.h"

namespace dlsim::sim {

// What tells runs of commands from runs of kernels, in "dlsim.suite".
inline constexpr std::string_view kCommandSuite = "commands";

struct CommandBenchRequest {
  std::string program;        // dlsim
  std::string filter, sizes;  // as for KernelSelection; sizes are large and small
  std::string threads;        // numbers with commas; one and all if empty
  std::string directory;      // where the traces go; the system's temporary one if empty
  uint64_t mib = 256;         // of each trace
  uint64_t repetitions = 11;
  FileCache cache = FileCache::kCached;
};

// What to tell while it runs.
struct CommandBenchObserver {
  // Sentences for the user: what will be done, and, before the repetitions, how long they take.
  std::function<void(const std::string& text)> announce;
  // Called when the number of repetitions of all commands is known, and after each.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

// Returns a document of schema dlsim.bench/1. Commands take turns: one repetition of each, in an
// order of its own, then the next. `build` holds the fields of the block "dlsim" that tell the
// program that is timed. Throws UsageError if nothing is selected.
Json BenchCommands(const CommandBenchRequest& request, const Json& build,
                   const CommandBenchObserver& observer);

}  // namespace dlsim::sim
