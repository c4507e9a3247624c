// SPDX-License-Identifier: Apache-2.0
// Launches the measurement of pieces.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/measure/measure_kernels.h"

namespace dlsim::gpu {

// What a launch works on and where its results go.
struct PieceLaunch {
  const Piece* pieces = nullptr;
  uint32_t piece_count = 0;
  uint32_t pieces_per_group = 1;  // results: [(group * question_count + question) * this + piece]
  uint32_t question_count = 0;
  TensorStats* results = nullptr;

  // A piece that is absent has no elements.
  DLSIM_HOST_DEVICE uint32_t CountOf(uint32_t piece) const {
    return pieces[piece].values == nullptr ? 0 : pieces[piece].count;
  }
  DLSIM_HOST_DEVICE TensorStats* ResultOf(uint32_t piece, uint32_t question) const {
    const size_t group = piece / pieces_per_group, in_group = piece % pieces_per_group;
    return results + (group * question_count + question) * pieces_per_group + in_group;
  }
};

void LaunchPieces(const PieceLaunch& launch, std::span<const DeviceQuestion> questions,
                  Stream stream);

}  // namespace dlsim::gpu
