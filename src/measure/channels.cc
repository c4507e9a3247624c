// SPDX-License-Identifier: Apache-2.0
#include "dlsim/channels.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

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

// A tensor's values, one vector or view per part.
struct Values {
  std::vector<std::span<const float>> parts;
  std::vector<std::vector<float>> kept;
};

std::span<const float> LoadSource(const Source& source, std::vector<float>& kept) {
  const TraceTensor& tensor = *source.tensor;
  if (tensor.elements == 0) return {};
  const uint64_t bytes = tensor.elements * DTypeSize(tensor.dtype);
  std::vector<std::byte> read;
  const std::byte* from = tensor.memory;
  if (from == nullptr) {
    read.resize(bytes);
    from = tensor.Bytes(0, read);
  }
  const bool aligned = reinterpret_cast<uintptr_t>(from) % alignof(float) == 0;
  if (tensor.memory != nullptr && tensor.dtype == DType::kF32 && aligned &&
      source.grad_scale == 1.0f) {
    return {reinterpret_cast<const float*>(from), tensor.elements};
  }
  kept.resize(tensor.elements);
  LoadFloats(tensor.dtype, from, source.grad_scale, kept);
  return kept;
}

// The sum of the recordings in float32, in their order; absent ones add nothing.
void SumUp(Values& values) {
  size_t longest = 0;
  for (const std::span<const float> part : values.parts) longest = std::max(longest, part.size());
  std::vector<float> sum(longest, 0.0f);
  for (const std::span<const float> part : values.parts) {
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  values.kept.assign(1, std::move(sum));
  values.parts.assign(1, values.kept.front());
}

Values Load(const TensorSources& sources, Accumulation accumulation) {
  Values values;
  values.kept.resize(sources.recordings.size());
  for (size_t r = 0; r < sources.recordings.size(); ++r) {
    if (sources.recordings[r].tensor == nullptr) continue;
    values.parts.push_back(LoadSource(sources.recordings[r], values.kept[r]));
  }
  if (accumulation == Accumulation::kSumThenQuantize && values.parts.size() > 1) SumUp(values);
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
  const Values values = Load(sources, accumulation);
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
  const bool vector = role == Role::kGrad && shape.size() < kMatrix;
  if (shape.empty() || vector) return {1, 1, vector && !shape.empty() ? shape[0] : 1};
  const size_t axis = role == Role::kGrad ? 0 : shape.size() >= kImage ? 1 : shape.size() - 1;
  const auto product = [&](size_t from, size_t to) {
    return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(from),
                           shape.begin() + static_cast<ptrdiff_t>(to), uint64_t{1},
                           std::multiplies<>());
  };
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
