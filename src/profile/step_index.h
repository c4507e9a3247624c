// SPDX-License-Identifier: Apache-2.0
// The index at the end of a profile: which steps it holds and where.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

struct IndexEntry {
  int64_t step = 0;
  uint64_t trace_bytes = 0;    // of the files that the step was read from
  uint64_t tensors_bytes = 0;  // payload of the list before the step; 0 = as the step before
  uint64_t totals_bytes = 0;   // payloads
  uint64_t histograms_bytes = 0;

  // Size of all chunks of the step.
  uint64_t FileBytes() const;
};

std::string EncodeIndex(const std::vector<IndexEntry>& entries);

// Throws InputError unless the payload is the index of steps that take `steps_bytes` in the file.
std::vector<IndexEntry> DecodeIndex(const std::string& place, std::string_view payload,
                                    uint64_t steps_bytes);

}  // namespace dlsim
