// SPDX-License-Identifier: Apache-2.0
// Measures chunk after chunk of an array: what larger measurements are merged from.
#pragma once

#include <cstdint>
#include <span>

#include "dlsim/measure.h"

namespace dlsim {

// Measures one chunk (at most kChunkElements values) on the calling thread: the unit from which
// larger measurements are merged. `first_index` is the index of values[0] in the random stream.
TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question);

// What no question changes of a chunk, for kernels that need not find it again.
struct ChunkInputs {
  bool finite = false;  // all inputs are, and the rest is known; always false without such kernels
  float absmax = 0;
  uint32_t smallest_less_one = 0;  // bits of the smallest magnitude that is not zero, less one
  uint64_t zeros = 0;
  double sum_of_squares = 0;
};

// Looks at a chunk once for all questions about it.
ChunkInputs MeasureInputs(std::span<const float> values);

// As MeasureChunk above; `inputs` are those of the chunk.
TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question, const ChunkInputs& inputs);

// Where accumulation over micro-steps adds a chunk's results, in float32.
struct AccumulatedChunk {
  std::span<float> unscaled;  // the gradient of the step
  std::span<float> scaled;    // the same, still scaled: what an element-wise finite test sees
};

// As MeasureChunk, and adds each result to `sums`; all spans have one length.
TensorStats MeasureAndAccumulateChunk(std::span<const float> values, uint64_t first_index,
                                      const Measurement& question, const AccumulatedChunk& sums);

// Returns the float64 sum of squares of a chunk in the order above.
double SumOfSquaresOfChunk(std::span<const float> values);

// MeasureChunk by the scalar reference alone: the definition that the kernels must equal.
TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                  const Measurement& question);

}  // namespace dlsim
