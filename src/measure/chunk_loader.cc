// SPDX-License-Identifier: Apache-2.0
#include "src/measure/chunk_loader.h"

#include <algorithm>

#include "src/base/check.h"
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
                         Accumulation accumulation, Chunks chunks)
    : sources_(&sources),
      block_(&block),
      sums_first_(SumsFirst(sources.recordings.size(), accumulation)),
      chunks_(chunks),
      bytes_(ReadBlock(sources, block)) {}

size_t ChunkLoader::ChunkLength(size_t begin) const {
  return std::min(kChunkElements, block_->count - begin);
}

std::span<const float> ChunkLoader::Load(size_t part, size_t begin) {
  return sums_first_ ? LoadSum(begin) : LoadRecording(part, begin, part);
}

bool ChunkLoader::IsPlain(size_t recording) const {
  const Source& source = sources_->recordings[recording];
  const bool aligned = reinterpret_cast<uintptr_t>(bytes_[recording]) % alignof(float) == 0;
  return source.tensor->dtype == DType::kF32 && aligned && source.grad_scale == 1.0f;
}

// Returns room for a chunk of what `buffer` holds: of a block, or of one chunk after the other.
std::span<float> ChunkLoader::RoomFor(size_t begin, size_t length,
                                      std::vector<float>& buffer) const {
  const bool keeps = chunks_ == Chunks::kKeep;
  buffer.resize(keeps ? block_->count : kChunkElements);
  return std::span(buffer).subspan(keeps ? begin : 0, length);
}

// Converts into the buffer of a part, unless the values can be used where they are.
std::span<const float> ChunkLoader::LoadRecording(size_t recording, size_t begin, size_t part) {
  if (bytes_[recording] == nullptr) return {};
  const Source& source = sources_->recordings[recording];
  const size_t elements = ElementsOf(source, *block_);
  const size_t first = std::min(elements, begin);
  const size_t length = std::min(ChunkLength(begin), elements - first);
  const DType dtype = source.tensor->dtype;
  const std::byte* from = bytes_[recording] + first * DTypeSize(dtype);
  if (IsPlain(recording)) return {reinterpret_cast<const float*>(from), length};
  if (converted_.empty()) converted_.resize(part_count());
  const std::span<float> out = RoomFor(first, length, converted_[part]);
  LoadFloats(dtype, from, source.grad_scale, out);
  return out;
}

// Sums the recordings in float32, in their order.
std::span<const float> ChunkLoader::LoadSum(size_t begin) {
  const std::span<float> sum = RoomFor(begin, ChunkLength(begin), sum_);
  std::ranges::fill(sum, 0.0f);
  for (size_t r = 0; r < bytes_.size(); ++r) {
    const std::span<const float> chunk = LoadRecording(r, begin, 0);
    for (size_t i = 0; i < chunk.size(); ++i) sum[i] += chunk[i];
  }
  return sum;
}

std::span<const float> ChunkLoader::Loaded(size_t part) const {
  DLSIM_CHECK(chunks_ == Chunks::kKeep);
  if (sums_first_) return sum_;
  if (bytes_[part] == nullptr) return {};
  const size_t elements = ElementsOf(sources_->recordings[part], *block_);
  if (IsPlain(part)) return {reinterpret_cast<const float*>(bytes_[part]), elements};
  return std::span(converted_[part]).first(elements);
}

}  // namespace dlsim
