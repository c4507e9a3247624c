// SPDX-License-Identifier: Apache-2.0
// Reads the parts of blocks into one buffer, aligned, from which a device fetches them at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/dtype.h"
#include "src/device/compute_device.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// Where the elements of one part of a block come to lie, or where they are on the device already.
struct StagedPart {
  size_t offset = 0;   // in the buffer, a multiple of kStagedAlignment
  uint32_t count = 0;  // elements; 0 = the part lacks what the block is cut from
  DType dtype = DType::kF32;
  float inverse_grad_scale = 1.0f;       // what is still to be multiplied with, unless it is 1
  const std::byte* on_device = nullptr;  // then nothing is staged

  size_t bytes() const { return on_device != nullptr ? 0 : count * DTypeSize(dtype); }
};

inline constexpr size_t kStagedAlignment = 16;

// The next multiple of kStagedAlignment.
constexpr size_t AlignStaged(size_t bytes) {
  return (bytes + kStagedAlignment - 1) / kStagedAlignment * kStagedAlignment;
}

// Appends the parts of a block, as they follow each other from `offset` on; returns where they end.
// Parts are recordings, but where these are summed before anything else the float32 sum is the one
// part: the CPU sums as it copies, so that only the sum goes to the device.
size_t LayOutBlock(const StepWork& work, const Block& block, size_t offset,
                   std::vector<StagedPart>& parts);

// Fills the buffer on all threads: `parts` are those of the blocks, in order.
void StageBlocks(const StepWork& work, std::span<const Block> blocks,
                 std::span<const StagedPart> parts, std::byte* buffer);

// Copies on all threads.
void CopyBytes(std::span<const std::byte> from, std::byte* to);

// Copy codes on all threads between an array of 32 bits each and one of 16.
void NarrowCodes(std::span<const uint32_t> from, uint16_t* to);
void WidenCodes(std::span<const uint16_t> from, uint32_t* to);

}  // namespace dlsim
