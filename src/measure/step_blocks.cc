// SPDX-License-Identifier: Apache-2.0
#include "src/measure/step_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"

namespace dlsim {

std::vector<TensorSources> CollectTensors(const TraceStep& step, Pass pass) {
  std::vector<TensorSources> tensors;
  const std::map<std::string, FeatureAxis> axes = FeatureAxes(step);
  const bool repeats = step.recordings.size() > 1;
  std::map<std::string_view, size_t> index;  // empty for one recording: its names are distinct
  if (step.recordings.size() == 1 && pass == Pass::kBackward) {
    tensors.reserve(step.recordings.front().tensors.size());
  }
  for (size_t r = 0; r < step.recordings.size(); ++r) {
    for (const TraceTensor& tensor : step.recordings[r].tensors) {
      const TensorInfo& info = *tensor.info;
      if (!IsOf(pass, info.role)) continue;
      size_t t = tensors.size();
      if (repeats) t = index.try_emplace(info.name, t).first->second;
      if (t == tensors.size()) {
        tensors.push_back({&tensor, 0, {}});
        const auto found = info.role == Role::kActGrad ? axes.find(info.name) : axes.end();
        if (found != axes.end()) tensors[t].features = found->second;
      }
      TensorSources& sources = tensors[t];
      sources.recordings.resize(step.recordings.size());
      sources.recordings[r] = {&tensor, step.recordings[r].CarriedScale(info.role)};
      sources.elements = std::max(sources.elements, tensor.elements);
    }
  }
  return tensors;
}

size_t ElementsOf(const Source& source, const Block& block) {
  if (source.tensor == nullptr || source.tensor->elements <= block.begin) return 0;
  const uint64_t rest = source.tensor->elements - block.begin;
  return static_cast<size_t>(std::min<uint64_t>(block.count, rest));
}

namespace {

// Blocks measured together: many, since threads wait for each other at the end.
constexpr size_t kBlocksPerWave = 4096;

// Of where the parts of a block begin in a buffer.
constexpr size_t kBufferAlignment = 64;

// Returns the blocks of all tensors, in order.
std::vector<Block> CutIntoBlocks(const std::vector<TensorSources>& tensors) {
  std::vector<Block> blocks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (uint64_t begin = 0; begin < tensors[t].elements; begin += kBlockElements) {
      const uint64_t rest = tensors[t].elements - begin;
      blocks.push_back({t, begin, static_cast<size_t>(std::min<uint64_t>(rest, kBlockElements))});
    }
  }
  return blocks;
}

// Memory of one thread, at least as large as it was ever asked for. Its content is undefined.
std::span<std::byte> ThreadBuffer(size_t bytes) {
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kBufferAlignment});
    }
  };
  thread_local std::unique_ptr<std::byte[], Free> buffer;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = 0;
    const size_t enough = std::max(bytes, kBlockElements * sizeof(float));
    buffer.reset(new (std::align_val_t{kBufferAlignment}) std::byte[enough]);
    size = enough;
  }
  return {buffer.get(), bytes};
}

// Finds where the bytes of a block are, per recording; null where it lacks what the block is cut
// from. What is not in memory is read into the buffer of the calling thread, where it stays until
// the thread reads another block: it is worked on while the thread's cache holds it.
void ReadBlock(const TensorSources& sources, const Block& block,
               std::vector<const std::byte*>& bytes) {
  bytes.assign(sources.recordings.size(), nullptr);
  // Whole cache lines for each recording, which may be of any type.
  const size_t lines = (block.count * sizeof(double) + kBufferAlignment - 1) / kBufferAlignment;
  const size_t room = lines * kBufferAlignment;
  const std::span<std::byte> buffer = ThreadBuffer(bytes.size() * room);
  for (size_t r = 0; r < bytes.size(); ++r) {
    const Source& source = sources.recordings[r];
    const size_t elements = ElementsOf(source, block);
    if (elements == 0) continue;
    const size_t size = DTypeSize(source.tensor->info->dtype);
    bytes[r] = source.tensor->Bytes(block.begin * size, buffer.subspan(r * room, elements * size));
  }
}

}  // namespace

void ForEachWave(const std::vector<TensorSources>& tensors,
                 const std::function<void(std::span<const Block> blocks)>& work) {
  const std::vector<Block> blocks = CutIntoBlocks(tensors);
  for (size_t first = 0; first < blocks.size(); first += kBlocksPerWave) {
    work(std::span(blocks).subspan(first, std::min(kBlocksPerWave, blocks.size() - first)));
  }
}

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

void Source::Load(uint64_t begin, std::span<float> out) const {
  const DType dtype = tensor->info->dtype;
  const size_t size = DTypeSize(dtype);
  std::array<std::byte, kChunkElements * sizeof(double)> buffer;
  LoadFloats(dtype, tensor->Bytes(begin * size, std::span(buffer).first(out.size() * size)),
             grad_scale, out);
}

void VisitValues(const Recording& recording, const TraceTensor& tensor,
                 const std::function<void(uint64_t begin, std::span<const float> values)>& visit) {
  const DefaultFloatEnvironment environment;
  const Source source = {&tensor, recording.CarriedScale(tensor.info->role)};
  std::array<float, kChunkElements> chunk;
  for (uint64_t begin = 0; begin < tensor.elements; begin += chunk.size()) {
    const auto values =
        std::span(chunk).first(std::min<uint64_t>(chunk.size(), tensor.elements - begin));
    source.Load(begin, values);
    visit(begin, values);
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
