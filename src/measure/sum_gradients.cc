// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <valarray>
#include <vector>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/base/parallel.h"
#include "src/measure/block_loader.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// Adds what of(tensor, values) returns for the blocks of each gradient, over all parts, to `zero`.
template <class Result, class Of>
std::vector<Result> OverBlocks(const TraceStep& step, Accumulation accumulation, const Result& zero,
                               const Of& of) {
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::vector<Result> results(tensors.size(), zero);
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    std::vector<Result> of_block(wave.size(), zero);
    ParallelFor(wave.size(), [&](size_t i) {
      BlockLoader loader(accumulation);
      loader.Read(tensors[wave[i].tensor], wave[i]);
      for (size_t part = 0; part < loader.part_count(); ++part) {
        of_block[i] += of(wave[i].tensor, loader.Values(part));
      }
    });
    for (size_t i = 0; i < wave.size(); ++i) results[wave[i].tensor] += of_block[i];
  });
  return results;
}

}  // namespace

std::vector<double> SumGradients(const TraceStep& step) {
  const auto sum_of = [](size_t, std::span<const float> values) {
    double sum = 0;
    for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
      SumLanes sums{};
      ForEachLane(std::min(kChunkElements, values.size() - begin), [&](size_t i, size_t lane) {
        const float value = values[begin + i];
        sums[lane] += std::isfinite(value) ? double{value} : 0;
      });
      sum += AddLanes(sums);
    }
    return sum;
  };
  return OverBlocks(step, Accumulation::kQuantizeThenSum, 0.0, sum_of);
}

std::vector<std::valarray<uint64_t>> CountGradients(
    const TraceStep& step, Accumulation accumulation,
    std::span<const std::vector<uint32_t>> magnitudes) {
  const std::valarray<uint64_t> zero(magnitudes.size());
  return OverBlocks(step, accumulation, zero, [&](size_t tensor, std::span<const float> values) {
    std::valarray<uint64_t> counts = zero;
    for (size_t i = 0; i < counts.size(); ++i) {
      uint32_t count = 0;
      for (const float value : values) {
        count += (std::bit_cast<uint32_t>(value) & ~codec::kSignBit) >= magnitudes[i][tensor];
      }
      counts[i] = count;
    }
    return counts;
  });
}

}  // namespace dlsim
