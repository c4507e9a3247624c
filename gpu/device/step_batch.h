// SPDX-License-Identifier: Apache-2.0
// Blocks of a step that go to the device together.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gpu/base/piece.h"
#include "src/device/compute_device.h"
#include "src/device/staged_blocks.h"

namespace dlsim::gpu {

// What a batch may need; a single block may need more.
struct BatchLimits {
  size_t input_bytes = size_t{32} << 20;
  size_t output_bytes = size_t{16} << 20;
};

struct StepBatch {
  std::span<const Block> blocks;
  std::vector<StagedPart> parts;  // [block * part_count + part]
  size_t staged_bytes = 0;        // of the elements
};

// Takes as many of the first blocks as the limits allow, at least one; each gives so much output.
StepBatch TakeBatch(const StepWork& work, std::span<const Block>& blocks, size_t output_per_block,
                    const BatchLimits& limits = {});

// Describes a part whose bytes lie on the device, staged from `staged` on unless they were there
// before; `tensor` is left open.
Piece PieceOf(const Block& block, const StagedPart& part, const std::byte* staged);

}  // namespace dlsim::gpu
