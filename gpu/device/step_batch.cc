// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/step_batch.h"

namespace dlsim::gpu {

StepBatch TakeBatch(const StepWork& work, std::span<const Block>& blocks, size_t output_per_block,
                    const BatchLimits& limits) {
  StepBatch batch;
  size_t count = 0;
  while (count < blocks.size()) {
    const size_t parts = batch.parts.size();
    const size_t end = LayOutBlock(work, blocks[count], batch.staged_bytes, batch.parts);
    const bool fits =
        end <= limits.input_bytes && (count + 1) * output_per_block <= limits.output_bytes;
    if (count > 0 && !fits) {
      batch.parts.resize(parts);
      break;
    }
    batch.staged_bytes = end;
    ++count;
  }
  batch.blocks = blocks.first(count);
  blocks = blocks.subspan(count);
  return batch;
}

Piece PieceOf(const Block& block, const StagedPart& part, const std::byte* staged) {
  Piece piece;
  piece.first_index = block.begin;
  piece.inverse_grad_scale = part.inverse_grad_scale;
  piece.dtype = part.dtype;
  piece.count = part.count;
  if (part.count > 0) piece.values = part.on_device ? part.on_device : staged + part.offset;
  return piece;
}

}  // namespace dlsim::gpu
