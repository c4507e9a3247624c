// SPDX-License-Identifier: Apache-2.0
// What another policy would have done where a log states at which scales gradients overflowed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

// Scaling and rounding are monotone: a step that overflowed at S does so at each higher scale, and
// one that did not at S does not at a lower one. All else is uncertain.
enum class Certainty : uint8_t { kApplied, kSkipped, kUncertain };

constexpr auto EnumNames(Certainty) {
  return std::to_array<EnumName<Certainty>>({{Certainty::kApplied, "applied"},
                                             {Certainty::kSkipped, "skipped"},
                                             {Certainty::kUncertain, "uncertain"}});
}

// One run, in which all uncertain steps are taken for applied, or all for skipped.
struct WhatIfRun {
  int64_t steps = 0;
  int64_t skipped = 0;  // certain, and uncertain ones if they are taken so
  int64_t uncertain = 0;
  double first_scale = 0, last_scale = 0, min_scale = 0;
  std::string raises = {};  // the original's exception, which ended the run; empty if it did not
};

struct WhatIf {
  std::string policy = {};
  std::vector<std::string> settings = {};
  WhatIfRun applied = {}, skipped = {};  // with uncertain steps taken so
};

Certainty Judge(const LoggedStep& step, double scale);

// Runs the scaler along the recorded steps.
WhatIfRun RunWhatIf(LossScaler scaler, std::span<const LoggedStep> steps, Certainty uncertain_as);

}  // namespace dlsim::sim
