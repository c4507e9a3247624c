// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/rank_copies.h"

#include <algorithm>

namespace dlsim::sim {
namespace {

using Same = std::function<bool(size_t, size_t)>;

// How far the first rank may be ahead of the last one, in messages.
constexpr size_t kMostLead = 3;

// Returns how many equal messages follow each other at most.
size_t MostInARow(const Same& same, size_t count) {
  size_t most = 0;
  for (size_t i = 0, end = 0; i < count; i = end) {
    while (end < count && same(i, end)) ++end;
    most = std::max(most, end - i);
  }
  return most;
}

// Returns the messages of the first rank; none if the sequence is not that of `ranks` ranks.
std::vector<size_t> FirstOf(size_t ranks, size_t count, const Same& same) {
  std::vector<size_t> kept;
  std::vector<size_t> matched(ranks - 1, 0);  // messages of the others, the slowest one last
  for (size_t i = 0; i < count; ++i) {
    const auto waiting = std::ranges::find_if(matched.rbegin(), matched.rend(), [&](size_t done) {
      return done < kept.size() && same(kept[done], i);
    });
    if (waiting == matched.rend()) {
      kept.push_back(i);
    } else {
      ++*std::ranges::lower_bound(matched, *waiting, std::greater{});  // the first that is equal
    }
    if (kept.size() - matched.back() > kMostLead) return {};
  }
  if (matched.back() != kept.size() || kept.size() < 2) return {};
  return kept;
}

}  // namespace

RankCopies FindRankCopies(size_t count, const Same& same) {
  RankCopies copies;
  // Messages that ranks print with others between them could be those of one rank: only next to
  // messages whose copies follow each other are they taken for copies.
  const size_t most = std::min({count / 2, size_t{4096}, MostInARow(same, count)});
  size_t of_first = 0;  // all ranks print the first message, and perhaps do so again
  for (size_t i = 0; i < count; ++i) of_first += same(0, i) ? 1 : 0;
  if (of_first == count) return copies;  // equal ones alone could be of one rank
  for (size_t ranks = std::min(of_first, most); ranks >= 2; --ranks) {
    if (count % ranks != 0 || of_first % ranks != 0) continue;
    copies.kept = FirstOf(ranks, count, same);
    if (copies.kept.empty()) continue;
    copies.ranks = ranks;
    return copies;
  }
  return copies;
}

}  // namespace dlsim::sim
