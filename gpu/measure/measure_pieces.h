// SPDX-License-Identifier: Apache-2.0
// Launches the measurement of pieces, or of sums of pieces.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/measure/measure_kernels.h"

namespace dlsim::gpu {

// What a launch works on and where its results go.
struct PieceLaunch {
  const Piece* pieces = nullptr;
  uint32_t unit_count = 0;       // thread blocks
  uint32_t pieces_per_unit = 1;  // that are added in float32
  uint32_t units_per_group = 1;  // results: [(group * question_count + question) * this + unit]
  uint32_t question_count = 0;
  TensorStats* results = nullptr;

  DLSIM_HOST_DEVICE TensorStats* ResultOf(uint32_t unit, uint32_t question) const {
    const size_t group = unit / units_per_group, in_group = unit % units_per_group;
    return results + (group * question_count + question) * units_per_group + in_group;
  }
};

void LaunchPieces(const PieceLaunch& launch, std::span<const DeviceQuestion> questions,
                  Stream stream);

}  // namespace dlsim::gpu
