// SPDX-License-Identifier: Apache-2.0
#include "dlsim/channels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/base/parallel_side_task.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/step_blocks.h"
#include "src/measure/step_channels.h"

namespace dlsim {

ChannelLayout LayoutAlong(const std::vector<uint64_t>& shape, size_t axis) {
  const auto product = [&](size_t from, size_t to) {
    return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(from),
                           shape.begin() + static_cast<ptrdiff_t>(to), uint64_t{1},
                           std::multiplies<>());
  };
  if (axis >= shape.size() || shape.size() < 2) return {1, 1, product(0, shape.size())};
  return {product(0, axis), shape[axis], product(axis + 1, shape.size())};
}

ChannelLayout LayoutOf(Role role, const std::vector<uint64_t>& shape) {
  constexpr size_t kImage = 4;
  if (role == Role::kGrad) return LayoutAlong(shape, 0);
  return LayoutAlong(shape, shape.size() >= kImage ? 1 : shape.size() - 1);
}

double ChannelCurves::HarmAt(const std::vector<uint16_t>& codes, double log_quantum) const {
  if (!known()) return 0;
  const double place = std::floor(log_quantum) - first;
  const auto code_at = [&](double at) -> double {
    if (at < 0) return kMostCode;
    if (at >= static_cast<double>(codes.size())) return 0;
    return std::min(codes[static_cast<size_t>(at)], kMostCode);
  };
  const double share = log_quantum - std::floor(log_quantum);
  const double code = code_at(place) * (1 - share) + (share > 0 ? code_at(place + 1) * share : 0);
  return code >= kMostCode ? 0 : std::exp2(-code / kCodesPerBinade);
}

std::optional<double> LogQuantum(const Conversion& conversion, double scale) {
  const bool nearest = conversion.rounding == Rounding::kNearestEven ||
                       conversion.rounding == Rounding::kNearestAway;
  if (!nearest || conversion.subnormals != Subnormals::kKeep) return std::nullopt;
  const Format& format = conversion.format;
  return 1 - format.bias - format.mantissa_bits - std::log2(std::abs(scale));
}

std::vector<ChannelCurves> MeasureChannels(const TraceStep& step, Accumulation accumulation) {
  std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  StepChannels channels(tensors);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!channels.Counts(t)) tensors[t].elements = 0;  // nothing of it is read
  }
  // How many elements are looked at in the time in which one is counted.
  constexpr uint64_t kLooksPerCount = 4;
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    uint64_t elements = 0;
    for (const Block& block : wave) elements += block.count * step.recordings.size();
    ParallelForWithSideTask(
        wave.size(),
        [&](size_t i) {
          ChunkLoader loader(tensors[wave[i].tensor], wave[i], accumulation,
                             ChunkLoader::Chunks::kKeep);
          for (size_t part = 0; part < loader.part_count(); ++part) {
            for (size_t begin = 0; begin < wave[i].count; begin += kChunkElements) {
              if (loader.Has(part)) loader.Load(part, begin);
            }
          }
          channels.Add(wave[i], loader);
        },
        elements * kLooksPerCount);
  });
  return channels.Take();
}

}  // namespace dlsim
