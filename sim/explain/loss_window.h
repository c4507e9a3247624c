// SPDX-License-Identifier: Apache-2.0
// The losses that a log prints around one skipped step.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// A skipped step of a path: the stretch, and which of its overflows.
struct SkipPlace {
  size_t stretch = 0, overflow = 0;
};

// What the losses say of the step. Of none of the two, `why` states the reason.
struct SkipLoss {
  std::optional<PrintedLoss> nonfinite = {}, finite = {};
  std::string why = {};
};
SkipLoss FindSkipLoss(const ScalePath& path, SkipPlace place);

}  // namespace dlsim::sim
