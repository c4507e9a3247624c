// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/base/parallel.h"
#include "src/measure/block_loader.h"
#include "src/measure/measure_element.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

double SumOfFinite(std::span<const float> values) {
  double sum = 0;
  for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
    SumLanes sums{};
    ForEachLane(std::min(kChunkElements, values.size() - begin), [&](size_t i, size_t lane) {
      const float value = values[begin + i];
      const bool finite = value - value == 0;
      sums[lane] += finite ? double{value} : 0.0;
    });
    sum += AddLanes(sums);
  }
  return sum;
}

uint64_t CountFrom(std::span<const float> values, uint32_t magnitude) {
  uint64_t count = 0;
  for (const float value : values) {
    count += (std::bit_cast<uint32_t>(value) & ~codec::kSignBit) >= magnitude ? 1 : 0;
  }
  return count;
}

// Adds what of(tensor, values) returns for the blocks of each gradient, over all parts.
template <class Result, class Of>
std::vector<Result> OverBlocks(const TraceStep& step, Accumulation accumulation, const Of& of) {
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::vector<Result> results(tensors.size());
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    std::vector<Result> of_block(wave.size());
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
  return OverBlocks<double>(
      step, Accumulation::kQuantizeThenSum,
      [](size_t, std::span<const float> values) { return SumOfFinite(values); });
}

std::vector<uint64_t> CountGradients(const TraceStep& step, Accumulation accumulation,
                                     std::span<const uint32_t> magnitudes) {
  return OverBlocks<uint64_t>(step, accumulation,
                              [&](size_t tensor, std::span<const float> values) {
                                return CountFrom(values, magnitudes[tensor]);
                              });
}

}  // namespace dlsim
