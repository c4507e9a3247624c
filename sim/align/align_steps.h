// SPDX-License-Identifier: Apache-2.0
// Which step of one run is compared with which of another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/enum_names.h"

namespace dlsim::sim {

enum class Alignment : uint8_t { kNumber, kIndex };

constexpr auto EnumNames(Alignment) {
  return std::to_array<EnumName<Alignment>>(
      {{Alignment::kNumber, "number"}, {Alignment::kIndex, "index"}});
}

struct AlignedSteps {
  struct Pair {
    size_t a = 0, b = 0;  // indices
  };
  std::vector<Pair> pairs;              // in order
  std::vector<int64_t> only_a, only_b;  // numbers of the others
};

// Aligns ascending step numbers: equal numbers, or by place from the first step on.
AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment);

}  // namespace dlsim::sim
