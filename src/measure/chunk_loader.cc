// SPDX-License-Identifier: Apache-2.0
#include "src/measure/chunk_loader.h"

#include <algorithm>

#include "src/measure/load_floats.h"

namespace dlsim {
namespace {

bool SumsFirst(size_t recordings, Accumulation accumulation) {
  return accumulation == Accumulation::kSumThenQuantize && recordings > 1;
}

}  // namespace

std::vector<int64_t> PartNumbers(const TraceStep& step, Accumulation accumulation) {
  if (SumsFirst(step.recordings.size(), accumulation)) return {-1};
  std::vector<int64_t> numbers;
  for (const Recording& recording : step.recordings) numbers.push_back(recording.micro);
  return numbers;
}

ChunkLoader::ChunkLoader(const TensorSources& sources, const Block& block,
                         Accumulation accumulation)
    : sources_(&sources),
      block_(&block),
      sums_first_(SumsFirst(sources.recordings.size(), accumulation)),
      bytes_(ReadBlock(sources, block)),
      converted_(part_count()) {}

size_t ChunkLoader::ChunkLength(size_t begin) const {
  return std::min(kChunkElements, block_->count - begin);
}

std::span<const float> ChunkLoader::Load(size_t part, size_t begin) {
  return sums_first_ ? LoadSum(begin) : LoadRecording(part, begin, converted_[part]);
}

// Converts into the buffer, unless the values can be used where they are.
std::span<const float> ChunkLoader::LoadRecording(size_t recording, size_t begin,
                                                  std::vector<float>& buffer) {
  if (bytes_[recording] == nullptr) return {};
  const Source& source = sources_->recordings[recording];
  const size_t elements = ElementsOf(source, *block_);
  const size_t length = std::min(ChunkLength(begin), elements - std::min(elements, begin));
  const DType dtype = source.tensor->dtype;
  const std::byte* from = bytes_[recording] + begin * DTypeSize(dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % alignof(float) == 0;
  if (dtype == DType::kF32 && aligned && source.grad_scale == 1.0f) {
    return {reinterpret_cast<const float*>(from), length};
  }
  buffer.resize(kChunkElements);
  const std::span<float> out(buffer.data(), length);
  LoadFloats(dtype, from, source.grad_scale, out);
  return out;
}

// Sums the recordings in float32, in their order.
std::span<const float> ChunkLoader::LoadSum(size_t begin) {
  sum_.assign(ChunkLength(begin), 0.0f);
  for (size_t r = 0; r < bytes_.size(); ++r) {
    const std::span<const float> chunk = LoadRecording(r, begin, converted_.front());
    for (size_t i = 0; i < chunk.size(); ++i) sum_[i] += chunk[i];
  }
  return sum_;
}

}  // namespace dlsim
