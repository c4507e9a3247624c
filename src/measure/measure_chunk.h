// SPDX-License-Identifier: Apache-2.0
// The measurement of a chunk, and the order of sums that measure.h promises, also over blocks.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// Where accumulation over micro-steps adds a chunk's results, in float32.
struct AccumulatedChunk {
  std::span<float> unscaled;  // the gradient of the step
  std::span<float> scaled;    // the same, still scaled: what an element-wise finite test sees
};

// Measures at most kChunkElements values on the calling thread; adds each result to `sums`, if any.
// `first_index` is the index of values[0] in the random stream, instead of the question's.
TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const ArrayConversion& question, const AccumulatedChunk* sums = nullptr);

// The partial sums of a chunk, one per lane.
using SumLanes = std::array<double, kSumLanes>;

// Adds the lanes pairwise; the order is part of the contract in measure.h. Every NaN is the same:
// which one an addition of two keeps depends on the compiler.
inline double AddLanes(SumLanes lanes) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return std::isnan(lanes[0]) ? std::numeric_limits<double>::quiet_NaN() : lanes[0];
}

// Calls add(i, lane) for the elements of a chunk in order; written so that compilers vectorize it,
// for the instructions that the caller may use.
template <class Add>
[[gnu::always_inline]] inline void ForEachLane(size_t count, const Add& add) {
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) add(i + lane, lane);
  }
  for (size_t lane = 0; i + lane < count; ++lane) add(i + lane, lane);
}

// Adds what of(block, its values) returns for the blocks of each tensor, in order, to `zero`: the
// same digits for any number of threads.
template <class Result, class Of>
std::vector<Result> AddBlocks(const std::vector<TensorSources>& tensors, Accumulation accumulation,
                              const Result& zero, const Of& of) {
  std::vector<Result> results(tensors.size(), zero);
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    std::vector<Result> of_block(wave.size(), zero);
    uint64_t elements = 0;
    for (const Block& block : wave) {
      elements += block.count * tensors[block.tensor].recordings.size();
    }
    const auto look = [&](size_t i) {
      BlockLoader loader(accumulation);
      loader.Read(tensors[wave[i].tensor], wave[i]);
      of_block[i] += of(wave[i], loader);
    };
    ParallelFor(wave.size(), look, 2 * elements);
    for (size_t i = 0; i < wave.size(); ++i) results[wave[i].tensor] += of_block[i];
  });
  return results;
}

}  // namespace dlsim
