// SPDX-License-Identifier: Apache-2.0
#include "dlsim/channels.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

#include "dlsim/measure.h"
#include "src/base/parallel_beside.h"
#include "src/measure/channel_sums.h"
#include "src/measure/load_floats.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// Larger tensors are cut: all threads take channels of one, so that few are in memory at once.
constexpr uint64_t kLargeTensor = uint64_t{1} << 20;
// Channels of one element at a time that are counted together: a cache line of a row.
constexpr uint64_t kChannelsAtOnce = 16;
// How many elements are looked at in the time in which one is counted.
constexpr uint64_t kLooksPerCount = 8;

// The values of a tensor, one view for each part. Each thread keeps its buffers, since allocating
// new ones for each tensor takes longer than reading into them.
struct Values {
  std::vector<std::span<const float>> parts;
  std::vector<std::vector<float>> kept;  // grow, and never shrink
  std::vector<std::byte> bytes;

  std::span<float> Room(size_t recording, size_t elements) {
    if (kept.size() <= recording) kept.resize(recording + 1);
    std::vector<float>& room = kept[recording];
    if (room.size() < elements) room.resize(elements);
    return std::span(room).first(elements);
  }
};

// Loads a recording into its room, unless the values can be used where they are.
std::span<const float> LoadSource(const Source& source, size_t recording, Values& values) {
  const TraceTensor& tensor = *source.tensor;
  if (tensor.elements == 0) return {};
  const bool plain = tensor.dtype == DType::kF32 && source.grad_scale == 1.0f;
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.memory) % alignof(float) == 0;
  if (plain && aligned && tensor.memory != nullptr) {
    return {reinterpret_cast<const float*>(tensor.memory), tensor.elements};
  }
  const std::span<float> out = values.Room(recording, tensor.elements);
  if (plain && tensor.memory == nullptr) {
    tensor.read(0, std::as_writable_bytes(out));
    return out;
  }
  const uint64_t bytes = tensor.elements * DTypeSize(tensor.dtype);
  if (tensor.memory == nullptr && values.bytes.size() < bytes) values.bytes.resize(bytes);
  const std::span<std::byte> room = std::span(values.bytes).first(tensor.memory ? 0 : bytes);
  const std::byte* from = tensor.Bytes(0, room);
  for (size_t begin = 0; begin < out.size(); begin += kChunkElements) {
    LoadFloats(tensor.dtype, from + begin * DTypeSize(tensor.dtype), source.grad_scale,
               out.subspan(begin, std::min(kChunkElements, out.size() - begin)));
  }
  return out;
}

// The sum of the recordings in float32, in their order; absent ones add nothing.
void SumUp(size_t recordings, Values& values) {
  size_t longest = 0;
  for (const std::span<const float> part : values.parts) longest = std::max(longest, part.size());
  const std::span<float> sum = values.Room(recordings, longest);
  std::ranges::fill(sum, 0.0f);
  for (const std::span<const float> part : values.parts) {
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  values.parts.assign(1, sum);
}

// Returns the values of a tensor until the thread loads another.
const Values& Load(const TensorSources& sources, Accumulation accumulation) {
  thread_local Values values;
  const size_t recordings = sources.recordings.size();
  values.parts.clear();
  values.kept.reserve(recordings + 1);
  for (size_t r = 0; r < recordings; ++r) {
    if (sources.recordings[r].tensor == nullptr) continue;
    values.parts.push_back(LoadSource(sources.recordings[r], r, values));
  }
  if (accumulation == Accumulation::kSumThenQuantize && values.parts.size() > 1) {
    SumUp(recordings, values);
  }
  return values;
}

// Returns how a tensor's channels lie, if that is known: alike in all recordings, on the host. Of
// recordings of other lengths `outer` is that of each.
std::optional<ChannelLayout> LayoutOf(const TensorSources& sources) {
  std::optional<ChannelLayout> layout;
  for (const Source& source : sources.recordings) {
    if (source.tensor == nullptr) continue;
    if (source.tensor->device >= 0) return std::nullopt;
    const ChannelLayout own = LayoutOf(sources.header.role, source.tensor->shape);
    if (layout && (layout->channels != own.channels || layout->inner != own.inner)) {
      return std::nullopt;
    }
    layout = own;
  }
  return layout;
}

// Adds up channels [begin, end) of a tensor.
ChannelSums SumsOf(const Values& values, const ChannelLayout& layout, uint64_t begin,
                   uint64_t end) {
  thread_local std::vector<ChannelBins> bins;
  thread_local std::vector<ChannelBins::NamedBin> taken;
  const uint64_t at_once = layout.inner >= kChannelsAtOnce ? 1 : kChannelsAtOnce;
  if (bins.size() < at_once) bins.resize(at_once);
  const uint64_t row = layout.channels * layout.inner;
  ChannelSums sums;
  for (uint64_t first = begin; first < end; first += at_once) {
    const uint64_t last = std::min(end, first + at_once);
    for (const std::span<const float> part : values.parts) {
      for (uint64_t outer = 0; outer * row < part.size(); ++outer) {
        for (uint64_t channel = first; channel < last; ++channel) {
          const uint64_t at = outer * row + channel * layout.inner;
          ChannelBins& of_channel = bins[channel - first];
          if (layout.inner == 1) {
            of_channel.Add(part[at]);
          } else {
            of_channel.Add(part.subspan(at, layout.inner));
          }
        }
      }
    }
    for (uint64_t channel = first; channel < last; ++channel) {
      bins[channel - first].Take(taken);
      sums.Add(taken);
    }
  }
  return sums;
}

// Cuts the channels where no number of threads can be seen.
ChannelCurves CurvesOfLarge(const TensorSources& sources, const ChannelLayout& layout,
                            Accumulation accumulation) {
  const Values& values = Load(sources, accumulation);
  constexpr uint64_t kSlices = 64;
  const uint64_t groups = (layout.channels + kChannelsAtOnce - 1) / kChannelsAtOnce;
  const uint64_t slices = std::min(kSlices, groups);
  std::vector<ChannelSums> sums(slices);
  ParallelFor(
      slices,
      [&](size_t slice) {
        const auto edge = [&](uint64_t i) {
          return std::min(layout.channels, i * groups / slices * kChannelsAtOnce);
        };
        sums[slice] = SumsOf(values, layout, edge(slice), edge(slice + 1));
      },
      sources.elements * kLooksPerCount);
  for (uint64_t slice = 1; slice < slices; ++slice) sums.front().Merge(sums[slice]);
  return sums.front().ToCurves();
}

}  // namespace

ChannelLayout LayoutOf(Role role, const std::vector<uint64_t>& shape) {
  constexpr size_t kMatrix = 2, kImage = 4;
  const auto product = [&](size_t from, size_t to) {
    return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(from),
                           shape.begin() + static_cast<ptrdiff_t>(to), uint64_t{1},
                           std::multiplies<>());
  };
  if (shape.size() < kMatrix) return {1, 1, product(0, shape.size())};
  const size_t axis = role == Role::kGrad ? 0 : shape.size() >= kImage ? 1 : shape.size() - 1;
  return {product(0, axis), shape[axis], product(axis + 1, shape.size())};
}

std::vector<ChannelCurves> MeasureChannels(const TraceStep& step, Accumulation accumulation) {
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::vector<ChannelCurves> curves(tensors.size());
  std::vector<size_t> small;
  uint64_t elements = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].elements >= kLargeTensor) {
      if (const auto layout = LayoutOf(tensors[t])) {
        curves[t] = CurvesOfLarge(tensors[t], *layout, accumulation);
      }
    } else {
      small.push_back(t);
      elements += tensors[t].elements;
    }
  }
  ParallelForBeside(
      small.size(),
      [&](size_t i) {
        const TensorSources& sources = tensors[small[i]];
        const auto layout = LayoutOf(sources);
        if (!layout || layout->channels == 0) return;
        curves[small[i]] =
            SumsOf(Load(sources, accumulation), *layout, 0, layout->channels).ToCurves();
      },
      elements * kLooksPerCount);
  return curves;
}

}  // namespace dlsim
