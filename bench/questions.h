// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of CPU and GPU alike convert and ask.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/measure.h"

namespace dlsim::bench {

// Every format at 8 scales: 2^0, 2^4, .. 2^28.
inline std::vector<Measurement> ManyQuestions() {
  std::vector<Measurement> questions;
  for (const std::string_view format : kDefaultFormats) {
    for (int i = 0; i < 8; ++i) {
      questions.push_back(
          {.conversion = {ParseFormat(format).format}, .scale = std::ldexp(1.0f, i * 4)});
    }
  }
  return questions;
}

}  // namespace dlsim::bench
