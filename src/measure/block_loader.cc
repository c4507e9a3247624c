// SPDX-License-Identifier: Apache-2.0
#include "src/measure/block_loader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"

namespace dlsim {
namespace {

bool SumsFirst(size_t recordings, Accumulation accumulation) {
  return accumulation == Accumulation::kSumThenQuantize && recordings > 1;
}

// Copies elements of type T to an aligned buffer first: the bytes may be misaligned.
template <class T, class Convert>
void LoadAs(const std::byte* from, std::span<float> out, const Convert& convert) {
  std::array<T, kChunkElements> buffer;
  DLSIM_CHECK(out.size() <= buffer.size());
  std::memcpy(buffer.data(), from, out.size_bytes() / sizeof(float) * sizeof(T));
  convert(std::span<const T>(buffer.data(), out.size()));
}

}  // namespace

void LoadFloats(DType dtype, const std::byte* from, float grad_scale, std::span<float> out) {
  for (; out.size() > kChunkElements; out = out.subspan(kChunkElements)) {
    LoadFloats(dtype, from, grad_scale, out.first(kChunkElements));
    from += kChunkElements * DTypeSize(dtype);
  }
  if (out.empty()) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), from, out.size_bytes());
      break;
    case DType::kF64:
      LoadAs<double>(from, out, [&](std::span<const double> values) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(values[i]);
      });
      break;
    case DType::kF16:
    case DType::kBF16:
      LoadAs<uint16_t>(from, out, [&](std::span<const uint16_t> codes) {
        DecodeArray(dtype == DType::kF16 ? kFp16 : kBf16, codes, out);
      });
      break;
  }
  if (grad_scale == 1.0f) return;
  const float inverse = 1.0f / grad_scale;
  for (float& value : out) value *= inverse;
}

void VisitValues(const Recording& recording, const TraceTensor& tensor,
                 const std::function<void(uint64_t begin, std::span<const float> values)>& visit) {
  const DefaultFloatEnvironment environment;
  const size_t size = DTypeSize(tensor.info->dtype);
  std::vector<float> values(std::min<uint64_t>(tensor.elements, kChunkElements));
  std::vector<std::byte> buffer(values.size() * size);
  for (uint64_t begin = 0; begin < tensor.elements; begin += kChunkElements) {
    const size_t count = std::min<uint64_t>(kChunkElements, tensor.elements - begin);
    const std::byte* const bytes =
        tensor.Bytes(begin * size, std::span(buffer).first(count * size));
    LoadFloats(tensor.info->dtype, bytes, recording.CarriedScale(tensor.info->role),
               std::span(values).first(count));
    visit(begin, std::span<const float>(values).first(count));
  }
}

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
  const DType dtype = source.tensor->info->dtype;
  const size_t count = ElementsOf(source, *block_);
  const bool aligned = reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0;
  if (dtype == DType::kF32 && aligned && source.grad_scale == 1.0f) {
    return {reinterpret_cast<const float*>(bytes), count};
  }
  std::vector<float>& values = converted_[recording];
  if (!values.empty()) return values;
  values.resize(count);
  LoadFloats(dtype, bytes, source.grad_scale, values);
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
