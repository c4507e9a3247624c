// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "dlsim/sim/runs.h"

namespace dlsim::sim {

ReplayRun MakeRun(const NamedFormat& format, const PolicyInfo& policy,
                  ConfiguredScaler configured) {
  return {.format = format.name,
          .policy = std::string(policy.name),
          .conversion = {format.format},
          .rules = policy.rules,
          .scaler = std::move(configured.scaler),
          .clipping = {.max_norm = {}, .max_value = {}, .rule = policy.rules.clip_rule},
          .initial = std::move(configured.initial)};
}

ReplayRun MakeRun(std::string_view format, std::string_view policy,
                  std::span<const std::string> settings) {
  const NamedFormat named = ParseFormat(format);
  const PolicyInfo& info = FindPolicy(policy);
  return MakeRun(named, info, info.make(ResolveParameters(info, settings), named.name));
}

}  // namespace dlsim::sim
