// SPDX-License-Identifier: Apache-2.0
// The lists that `dlsim scaler` takes: overflow steps, magnitudes, counts. Entries are separated by
// commas, blanks and newlines; "@FILE" reads the text from a file.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/app/scaler_run.h"

namespace dlsim::sim {

// These throw Error: exit code 2 for a bad entry, 3 for a file that cannot be read.

// Returns step numbers, ascending and without repeats.
std::vector<int64_t> ParseOverflowList(std::string_view text);

// Returns the largest magnitude of each step; "inf" and "nan" stand for one that is not finite.
std::vector<float> ParseMagnitudeList(std::string_view text);

// Returns pairs such as "1000:3", the counts below and above the edge.
std::vector<HistogramCounts> ParseHistogramList(std::string_view text);

}  // namespace dlsim::sim
