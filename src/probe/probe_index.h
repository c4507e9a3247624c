// SPDX-License-Identifier: Apache-2.0
// Where the chunks of a probe lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/probe.h"
#include "src/trace/byte_source.h"

namespace dlsim {

inline constexpr std::string_view kProbeMagic = "DLPROB";

// The first bytes of a file: magic, head and tensors.
std::string ProbeOpening(const std::string& place, const ProbeHead& head);

struct ProbeIndex {
  struct Step {
    int64_t step = 0;
    uint64_t gradients = 0, groups = 0;  // where their chunks lie
  };

  ProbeHead head;
  std::vector<Step> steps;
  std::map<size_t, uint64_t> values;  // where those between updates lie, by the updates before
  uint64_t opening = 0;               // bytes
  uint64_t end = 0;                   // of the last whole update or values

  // Returns where the i-th update ends.
  uint64_t EndOf(size_t i) const;

  // Forgets the updates from the i-th on, and all values behind the rest.
  void Truncate(size_t i);
};

// Reads the opening and the headers of all chunks. What ends in the middle of a chunk is taken up
// to it; throws InputError for what no kill can have left.
ProbeIndex IndexProbe(const ByteSource& source);

}  // namespace dlsim
