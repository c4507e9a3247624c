// SPDX-License-Identifier: Apache-2.0
// Made-up traces on which whole commands are timed: few large tensors, and many small ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"

namespace dlsim::sim {

enum class TraceShape {
  kLarge,  // 4 steps of 2 tensors, whatever the size
  kSmall,  // steps of 65 tensors, 0.8 MB together, as many as the size holds
};

constexpr auto EnumNames(TraceShape) {
  return std::to_array<EnumName<TraceShape>>(
      {{TraceShape::kLarge, "large"}, {TraceShape::kSmall, "small"}});
}

struct BenchTrace {
  std::string directory;
  std::vector<std::string> files;
  uint64_t bytes = 0;
};

// Writes a trace of about `mib` MiB into a new directory. Its values are N(0,1) * 2^U{-48..-9}: at
// a loss scale of 2^16, a third of them subnormal or zero in fp16, and none too large. Throws
// InputError.
BenchTrace WriteBenchTrace(const std::string& directory, TraceShape shape, uint64_t mib);

}  // namespace dlsim::sim
