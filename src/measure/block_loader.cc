// SPDX-License-Identifier: Apache-2.0
#include "src/measure/block_loader.h"

#include <algorithm>

#include "dlsim/measure.h"
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

void BlockLoader::Read(const TensorSources& sources, const Block& block) {
  sources_ = &sources;
  block_ = &block;
  sums_first_ = SumsFirst(sources.recordings.size(), accumulation_);
  ReadBlock(sources, block, bytes_);
  converted_.resize(bytes_.size());
  for (std::vector<float>& values : converted_) values.clear();
  sum_.clear();
}

std::span<const float> BlockLoader::Values(size_t part) {
  return sums_first_ ? Sum() : Recorded(part);
}

// Converts, unless the values can be used where they are.
std::span<const float> BlockLoader::Recorded(size_t recording) {
  const std::byte* const bytes = bytes_[recording];
  if (bytes == nullptr) return {};
  const Source& source = sources_->recordings[recording];
  const DType dtype = source.tensor->dtype;
  const size_t count = ElementsOf(source, *block_);
  const bool aligned = reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0;
  if (dtype == DType::kF32 && aligned && source.grad_scale == 1.0f) {
    return {reinterpret_cast<const float*>(bytes), count};
  }
  std::vector<float>& values = converted_[recording];
  if (!values.empty()) return values;
  values.resize(count);
  for (size_t begin = 0; begin < count; begin += kChunkElements) {
    LoadFloats(dtype, bytes + begin * DTypeSize(dtype), source.grad_scale,
               std::span(values).subspan(begin, std::min(kChunkElements, count - begin)));
  }
  return values;
}

std::span<const float> BlockLoader::Sum() {
  if (!sum_.empty()) return sum_;
  sum_.assign(block_->count, 0.0f);
  for (size_t r = 0; r < bytes_.size(); ++r) {
    const std::span<const float> values = Recorded(r);
    for (size_t i = 0; i < values.size(); ++i) sum_[i] += values[i];
  }
  return sum_;
}

}  // namespace dlsim
