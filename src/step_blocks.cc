// SPDX-License-Identifier: Apache-2.0
#include "step_blocks.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "parallel.h"

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

void FetchBlock(const TensorSources& sources, Block& block) {
  for (const Source& source : sources.recordings) {
    block.bytes.push_back(nullptr);
    if (source.tensor == nullptr || source.tensor->elements <= block.begin) continue;
    const size_t size = DTypeSize(source.tensor->dtype);
    const uint64_t offset = block.begin * size;
    if (source.tensor->mapped != nullptr) {
      block.bytes.back() = source.tensor->mapped + offset;
      continue;
    }
    const uint64_t elements =
        std::min<uint64_t>(block.count, source.tensor->elements - block.begin);
    std::vector<std::byte>& buffer = block.buffers.emplace_back(elements * size);
    source.tensor->read(offset, buffer);
    block.bytes.back() = buffer.data();
  }
}

}  // namespace dlsim
