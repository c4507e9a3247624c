// SPDX-License-Identifier: Apache-2.0
// Whether a skipped step overflowed in the forward or in the backward pass, from the losses that a
// log prints.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "dlsim/enum_names.h"
#include "sim/explain/brackets.h"
#include "sim/explain/scale_path.h"
#include "sim/explain/skip_summary.h"

namespace dlsim::sim {

enum class FailureSide : uint8_t { kForward, kBackward, kUnknown };

constexpr auto EnumNames(FailureSide) {
  return std::to_array<EnumName<FailureSide>>({{FailureSide::kForward, "forward"},
                                               {FailureSide::kBackward, "backward"},
                                               {FailureSide::kUnknown, "unknown"}});
}

struct Diagnosis {
  FailureSide side = FailureSide::kUnknown;
  std::string evidence = {};  // what speaks for it, or why nothing does
};

// Judges the first skipped step; of a divergence the first from where on the scale falls. A
// training whose losses end as not finite failed there, whatever its first skips were. A step whose
// loss is not finite has gradients that are not, and so is skipped.
Diagnosis Diagnose(const ScalePath& path, std::span<const LoggedStep> steps,
                   const SkipSummary& skips, const BracketTotals& totals);

}  // namespace dlsim::sim
