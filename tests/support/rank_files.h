// SPDX-License-Identifier: Apache-2.0
// Files, reference and values of traces that several data-parallel ranks recorded, for tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {

using Floats = std::vector<float>;

inline std::string StepFile(int64_t step, int64_t rank, int64_t micro) {
  const auto part = [](const char* name, int64_t number) {
    return number < 0 ? std::string() : name + std::to_string(number);
  };
  return "step-" + std::to_string(step) + part(".rank-", rank) + part(".micro-", micro) +
         ".safetensors";
}

// Independent of the reader: NumPy's float32 `sum` of one rank after the other, and `/ N`.
inline Floats Reduced(const std::vector<Floats>& ranks, RankReduction reduction) {
  Floats result = ranks.front();
  for (size_t r = 1; r < ranks.size(); ++r) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = result[i] + ranks[r][i];
  }
  if (reduction == RankReduction::kMean) {
    for (float& value : result) value = value / static_cast<float>(ranks.size());
  }
  return result;
}

inline Floats ValuesOf(const Recording& recording, const TraceTensor& tensor) {
  Floats values;
  VisitValues(recording, tensor, [&](uint64_t, std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

}  // namespace dlsim
