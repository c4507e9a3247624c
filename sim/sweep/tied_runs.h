// SPDX-License-Identifier: Apache-2.0
// Runs of a sweep that rank alike, merged into rows: "2^13 to 2^16".
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/sweep/sweep_output.h"

namespace dlsim::sim {

// Runs of one format, policy and rounding that tie, and every combination of whose values ties.
struct TiedRuns {
  size_t best = 0;                  // the one that ranks first
  size_t count = 0;                 // of runs
  std::vector<std::string> values;  // of AxisKeys, as text; ranges have the best run's in brackets
};

class TieMerger {
 public:
  explicit TieMerger(const SweepResult& result);

  // Merges runs that tie, the best first; so are the rows.
  std::vector<TiedRuns> Merge(std::span<const size_t> tied) const;

 private:
  // The values that the runs of one policy have of a key, in order, and the place of each.
  struct Domain {
    std::vector<std::string> values;
    std::map<std::string, size_t> places;
    bool numbers = true;
  };
  struct Box;

  std::vector<TiedRuns> MergeAlike(std::span<const size_t> tied) const;
  std::string TextOf(const Domain& domain, const std::string& key, std::span<const size_t> places,
                     size_t best) const;

  const SweepResult& result_;
  std::vector<std::string> keys_;
  std::map<const PolicyInfo*, std::vector<Domain>> domains_;  // of the keys
};

}  // namespace dlsim::sim
