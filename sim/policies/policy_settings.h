// SPDX-License-Identifier: Apache-2.0
// KEY=VALUE settings for several policies at once: each takes those whose key it knows, and
// POLICY.KEY=VALUE is for one and wins.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// What the settings set: the option that gives them, and the keys that a policy has.
struct SettingKind {
  std::string_view option;  // for messages
  std::string_view noun;
  std::function<std::vector<std::string>(const PolicyInfo& policy)> keys;
};

// The parameters of policies, aliases included: --set.
const SettingKind& ParameterSettings();

// The fields of a policy's state, and `scale` for its loss scale: --state.
const SettingKind& StateSettings();

// Returns the settings of one policy as KEY=VALUE. With `only_policy` an unknown key is passed on,
// so that the policy refuses it with a suggestion of its own.
std::vector<std::string> SettingsFor(const PolicyInfo& policy,
                                     std::span<const std::string> settings, const SettingKind& kind,
                                     bool only_policy);

// Throws Error (exit code 2) for a setting that reaches no policy: a misspelt one must not be lost.
void RequireUsed(std::span<const PolicyInfo* const> policies, std::span<const std::string> settings,
                 const SettingKind& kind);

// Sets the fields of a policy's scaler from KEY=VALUE of its state; the loss scale first, as a
// checkpoint that holds it alone. Throws Error (exit code 2) for unknown names, names given twice
// and unfit values.
void RestoreState(std::span<const std::string> state, std::string_view policy,
                  ConfiguredScaler& configured);

// What becomes of a scaler when training is interrupted and goes on from a checkpoint.

// Continues from a checkpoint that kept so much; `initial` is the scaler as training began.
inline void ResumeFrom(Kept kept, const LossScaler& initial, LossScaler& scaler) {
  if (kept == Kept::kScale) scaler.RestartAt(scaler.scale());
  if (kept == Kept::kNothing) scaler = initial;
}

}  // namespace dlsim::sim
