// SPDX-License-Identifier: Apache-2.0
// Ranks that print the same messages, each at its own pace.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace dlsim::sim {

struct RankCopies {
  size_t ranks = 1;
  std::vector<size_t> kept = {};  // of the messages, the first copy of each
};

// Finds the number of ranks whose copies a sequence of `count` messages is: each rank has all of
// them in order, and none is far ahead. `same(a, b)` compares two messages by their index.
RankCopies FindRankCopies(size_t count, const std::function<bool(size_t, size_t)>& same);

}  // namespace dlsim::sim
