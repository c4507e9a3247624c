// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/command_cases.h"

#include <fmt/format.h>

namespace dlsim::sim {
namespace {

struct CommandRow {
  const char* name;
  std::vector<std::string> arguments;
  bool reads_cold;
};

std::vector<CommandRow> Rows() {
  const std::string trace = kTraceArgument;
  return {
      {"Stream/pread/256KiB/-", {}, true},
      {"Command/replay/fp16/cerebras-2.10",
       {"replay", trace, "--format", "fp16", "--policy", "cerebras-2.10"},
       true},
      {"Command/replay/fp16/all", {"replay", trace, "--format", "fp16", "--policy", "all"}, false},
      {"Command/profile/all/-", {"profile", trace, "-o", kOutputArgument}, true},
      {"Command/sweep/fp16/torch",
       {"sweep", trace, "--format", "fp16", "--policy", "torch", "--vary", "init_scale=2^0..2^31"},
       false},
      {"Command/tune/fp16/cerebras-2.10", {"tune", trace, "--format", "fp16"}, false},
  };
}

}  // namespace

std::vector<CommandCase> CommandCases(const std::vector<int>& threads, FileCache cache) {
  const bool is_cold = cache == FileCache::kCold;
  std::vector<CommandCase> cases;
  for (const auto& [shape, shape_name] : EnumNames(TraceShape{})) {
    for (const CommandRow& row : Rows()) {
      if (is_cold && !row.reads_cold) continue;
      for (const int count : threads) {
        cases.push_back({.name = fmt::format("{}/{}/{}/threads:{}", row.name, shape_name,
                                             is_cold ? "cold" : "cached", count),
                         .shape = shape,
                         .threads = count,
                         .arguments = row.arguments});
      }
    }
  }
  return cases;
}

}  // namespace dlsim::sim
