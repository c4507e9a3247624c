// SPDX-License-Identifier: Apache-2.0
#include "src/measure/step_blocks.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "src/base/parallel.h"

namespace dlsim {

std::vector<TensorSources> CollectTensors(const TraceStep& step) {
  std::vector<TensorSources> tensors;
  const bool repeats = step.recordings.size() > 1;
  std::map<std::string_view, size_t> index;  // empty for one recording: its names are distinct
  for (size_t r = 0; r < step.recordings.size(); ++r) {
    for (const TraceTensor& tensor : step.recordings[r].tensors) {
      size_t t = tensors.size();
      if (repeats) t = index.try_emplace(tensor.name, t).first->second;
      if (t == tensors.size()) tensors.push_back({{tensor.name, tensor.role}, 0, {}});
      TensorSources& sources = tensors[t];
      sources.recordings.resize(step.recordings.size());
      sources.recordings[r] = {&tensor, step.recordings[r].grad_scale};
      sources.elements = std::max(sources.elements, tensor.elements);
    }
  }
  return tensors;
}

namespace {

// Blocks measured together, and the bytes that may be read ahead for them where tensors are not
// mapped: both bound the memory of a step.
constexpr size_t kBlocksPerWave = 256;
constexpr size_t kReadBytesPerWave = size_t{64} << 20;

// Returns the blocks of all tensors, in order, without their bytes.
std::vector<Block> CutIntoBlocks(const std::vector<TensorSources>& tensors) {
  std::vector<Block> blocks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (uint64_t begin = 0; begin < tensors[t].elements; begin += kBlockElements) {
      const uint64_t rest = tensors[t].elements - begin;
      blocks.push_back(
          {t, begin, static_cast<size_t>(std::min<uint64_t>(rest, kBlockElements)), {}, {}});
    }
  }
  return blocks;
}

// How the bytes of a tensor come into memory.
enum class Fetch { kMapped, kReadAlone, kReadInParallel };

Fetch FetchOf(const TraceTensor& tensor) {
  if (tensor.mapped != nullptr) return Fetch::kMapped;
  return tensor.parallel_read ? Fetch::kReadInParallel : Fetch::kReadAlone;
}

// Points a block at those of its bytes that come into memory in the given way.
void FetchBlock(const TensorSources& sources, Fetch how, Block& block) {
  block.bytes.resize(sources.recordings.size());
  for (size_t r = 0; r < block.bytes.size(); ++r) {
    const TraceTensor* const tensor = sources.recordings[r].tensor;
    if (tensor == nullptr || tensor->elements <= block.begin || FetchOf(*tensor) != how) continue;
    const size_t size = DTypeSize(tensor->dtype);
    const uint64_t offset = block.begin * size;
    if (how == Fetch::kMapped) {
      block.bytes[r] = tensor->mapped + offset;
      continue;
    }
    const uint64_t elements = std::min<uint64_t>(block.count, tensor->elements - block.begin);
    std::vector<std::byte>& buffer = block.buffers.emplace_back(elements * size);
    tensor->read(offset, buffer);
    block.bytes[r] = buffer.data();
  }
}

bool HasAny(const Recording& recording, Fetch how) {
  return std::ranges::any_of(recording.tensors,
                             [&](const TraceTensor& tensor) { return FetchOf(tensor) == how; });
}

// Points the blocks at their bytes.
void FetchWave(std::span<const Recording> recordings, const std::vector<TensorSources>& tensors,
               std::span<Block> wave) {
  for (Block& block : wave) {
    FetchBlock(tensors[block.tensor], Fetch::kMapped, block);
    FetchBlock(tensors[block.tensor], Fetch::kReadAlone, block);
  }
  const bool reads_in_parallel = std::ranges::any_of(recordings, [](const Recording& recording) {
    return HasAny(recording, Fetch::kReadInParallel);
  });
  if (!reads_in_parallel) return;
  ParallelFor(wave.size(), [&](size_t i) {
    FetchBlock(tensors[wave[i].tensor], Fetch::kReadInParallel, wave[i]);
  });
}

// Blocks of one wave: fewer where their bytes, of all recordings, have to be read into memory.
size_t BlocksPerWave(std::span<const Recording> recordings) {
  size_t bytes_per_block = 0;
  for (const Recording& recording : recordings) {
    if (HasAny(recording, Fetch::kReadAlone) || HasAny(recording, Fetch::kReadInParallel)) {
      bytes_per_block += kBlockElements * sizeof(double);
    }
  }
  if (bytes_per_block == 0) return kBlocksPerWave;
  return std::clamp<size_t>(kReadBytesPerWave / bytes_per_block, 1, kBlocksPerWave);
}

}  // namespace

void ForEachWave(std::span<const Recording> recordings, const std::vector<TensorSources>& tensors,
                 const std::function<void(std::span<const Block> blocks)>& work) {
  std::vector<Block> blocks = CutIntoBlocks(tensors);
  const size_t wave_size = BlocksPerWave(recordings);
  for (size_t first = 0; first < blocks.size(); first += wave_size) {
    const std::span<Block> wave(blocks.data() + first, std::min(wave_size, blocks.size() - first));
    FetchWave(recordings, tensors, wave);
    work(wave);
    for (Block& block : wave) block.buffers.clear();
  }
}

}  // namespace dlsim
