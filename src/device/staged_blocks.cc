// SPDX-License-Identifier: Apache-2.0
#include "src/device/staged_blocks.h"

#include <algorithm>
#include <cstring>

#include "src/base/parallel.h"
#include "src/measure/chunk_loader.h"

namespace dlsim {
namespace {

// True if the recordings of the step are summed before anything else.
bool SumsFirst(const StepWork& work) {
  return work.micro_steps.size() < work.step->recordings.size();
}

StagedPart PartOf(const Source& source, const Block& block) {
  const TraceTensor& tensor = *source.tensor;
  StagedPart part = {0, static_cast<uint32_t>(ElementsOf(source, block)), tensor.dtype,
                     source.grad_scale == 1.0f ? 1.0f : 1.0f / source.grad_scale};
  if (tensor.device >= 0) part.on_device = tensor.memory + block.begin * DTypeSize(tensor.dtype);
  return part;
}

void StageSum(const StepWork& work, const Block& block, std::byte* to) {
  ChunkLoader loader((*work.tensors)[block.tensor], block, work.options->accumulation);
  for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
    const std::span<const float> sum = loader.Load(0, begin);
    std::memcpy(to + begin * sizeof(float), sum.data(), sum.size_bytes());
  }
}

}  // namespace

size_t LayOutBlock(const StepWork& work, const Block& block, size_t offset,
                   std::vector<StagedPart>& parts) {
  const auto append = [&](StagedPart part) {
    part.offset = offset;
    offset += AlignStaged(part.bytes());
    parts.push_back(part);
  };
  if (SumsFirst(work)) {
    append({0, static_cast<uint32_t>(block.count)});
    return offset;
  }
  for (const Source& source : (*work.tensors)[block.tensor].recordings) {
    append(ElementsOf(source, block) == 0 ? StagedPart{} : PartOf(source, block));
  }
  return offset;
}

void StageBlocks(const StepWork& work, std::span<const Block> blocks,
                 std::span<const StagedPart> parts, std::byte* buffer) {
  const size_t part_count = work.micro_steps.size();
  ParallelFor(blocks.size(), [&](size_t b) {
    const std::span<const StagedPart> of_block = parts.subspan(b * part_count, part_count);
    if (SumsFirst(work)) return StageSum(work, blocks[b], buffer + of_block.front().offset);
    for (size_t p = 0; p < part_count; ++p) {
      const StagedPart& part = of_block[p];
      if (part.bytes() == 0) continue;
      CopyBlock((*work.tensors)[blocks[b].tensor], blocks[b], p,
                {buffer + part.offset, part.bytes()});
    }
  });
}

void CopyBytes(std::span<const std::byte> from, std::byte* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    std::memcpy(to + begin, from.data() + begin, count);
  });
}

void NarrowCodes(std::span<const uint32_t> from, uint16_t* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) to[i] = static_cast<uint16_t>(from[i]);
  });
}

void WidenCodes(std::span<const uint16_t> from, uint32_t* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    std::copy_n(from.data() + begin, count, to + begin);
  });
}

}  // namespace dlsim
