// SPDX-License-Identifier: Apache-2.0
// Which policies, with which parameters, reproduce a recorded path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/explain/candidates.h"
#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

// A parameter of a match, and whether the log states it.
struct ParameterEvidence {
  std::string name = {}, value = {};
  bool seen = false;  // another value would not fit
  std::optional<int64_t> least = {},
                         most = {};  // of an interval: the values around it that fit too
};

struct PolicyMatch {
  const PolicyInfo* policy = nullptr;
  ParameterMap parameters = {};  // as set, without those at their default
  ConfiguredScaler configured;
  PolicyFit fit = {};
  std::vector<ParameterEvidence> evidence = {};  // of the first match, of all that shape the path
};

struct Inference {
  std::optional<ScalePath> rest = {};       // what was fitted of a log that starts in mid-training
  size_t cut = 0;                           // stretches before it: it begins with the first change
  std::vector<PolicyMatch> matches = {};    // that reproduce all of it; the likeliest first
  std::optional<PolicyMatch> best = {};     // otherwise the one that gets farthest
  size_t tried = 0;                         // policies
  bool undecided = false;                   // not every set of every policy was tried to its end
  std::vector<std::string> not_tried = {};  // policies that look at gradients
};

// About how many steps the sets of one policy may take together, and how many ways through the
// whole path besides: more for those of the log's stack.
struct InferenceLimits {
  uint64_t work = 200'000, own_work = 4'000'000;
  uint64_t ways = 2, own_ways = 20;
};

// Returns what was fitted of a path.
inline const ScalePath& FittedPath(const ScalePath& path, const Inference& inference) {
  return inference.rest ? *inference.rest : path;
}

// Tries every policy of the registry. `format` is for defaults that depend on it.
Inference InferPolicy(const ScalePath& path, const std::string& format,
                      const InferenceLimits& limits = {});

// Returns the settings of a match as they are given to --set.
std::vector<std::string> SetOptions(const PolicyMatch& match);

}  // namespace dlsim::sim
