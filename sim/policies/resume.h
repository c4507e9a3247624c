// SPDX-License-Identifier: Apache-2.0
// What becomes of a scaler when training is interrupted and goes on from a checkpoint.
#pragma once

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// Continues from a checkpoint that kept so much; `initial` is the scaler as training began.
inline void ResumeFrom(Kept kept, const LossScaler& initial, LossScaler& scaler) {
  if (kept == Kept::kScale) scaler.RestartAt(scaler.scale());
  if (kept == Kept::kNothing) scaler = initial;
}

// Returns how much a stack's own checkpoint keeps of its policy's state.
inline Kept KeptByStack(CheckpointContent content) {
  switch (content) {
    case CheckpointContent::kScaleOnly:
      return Kept::kScale;
    case CheckpointContent::kNothing:
      return Kept::kNothing;
    default:
      return Kept::kAll;
  }
}

}  // namespace dlsim::sim
