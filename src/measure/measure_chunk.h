// SPDX-License-Identifier: Apache-2.0
// Measures chunk after chunk of an array: what larger measurements are merged from.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/measure/chunk_inputs.h"
#include "src/measure/measure_nearest.h"
#include "src/measure/measure_rounded.h"

namespace dlsim {

// A question with what follows from it, made once for many chunks.
class ChunkQuestion {
 public:
  explicit ChunkQuestion(const Measurement& measurement, Asked asked = Asked::kAll);

  const Measurement& measurement() const { return measurement_; }
  const CodecSpec& spec() const { return spec_; }
  Asked asked() const { return asked_; }
  void AskAll() { asked_ = Asked::kAll; }

  // Which kernel of measure_nearest-inl.h measures a chunk, and its constants; null: none does.
  struct Nearest {
    const NearestSpec* spec = nullptr;
    NearestKernel kernel;
  };
  Nearest NearestFor(const ChunkInputs& inputs) const;

  // Returns the answer where no element needs to be looked at again.
  std::optional<TensorStats> AnswerFrom(const ChunkInputs& inputs, uint64_t elements) const;

  // As NearestFor, of measure_rounded-inl.h, which serves more and takes longer. Where scaled
  // results are needed, too, values are multiplied.
  struct Rounded {
    const RoundedSpec* spec = nullptr;
    RoundedKernel kernel;
  };
  Rounded RoundedFor(const ChunkInputs& inputs, bool needs_scaled) const;

 private:
  Measurement measurement_;
  CodecSpec spec_;
  Asked asked_;
  std::optional<NearestSpec> exact_, multiplying_;         // without multiplications, and with them
  std::optional<RoundedSpec> unscaled_rounded_, rounded_;  // the same
};

// Where accumulation over micro-steps adds a chunk's results, in float32.
struct AccumulatedChunk {
  std::span<float> unscaled;  // the gradient of the step
  std::span<float> scaled;    // the same, still scaled: what an element-wise finite test sees
};

// Measures one chunk (at most kChunkElements values) on the calling thread: the unit from which
// larger measurements are merged. Questions share what they have in common.
class ChunkMeasurer {
 public:
  // `values` must live as long as this. `first_index` is the index of values[0] in the random
  // stream.
  ChunkMeasurer(std::span<const float> values, uint64_t first_index);

  const ChunkInputs& inputs() const { return inputs_; }
  TensorStats Measure(const ChunkQuestion& question);

  // The same, and adds each result to `sums`; all spans are as long as the chunk.
  TensorStats MeasureAndAccumulate(const ChunkQuestion& question, const AccumulatedChunk& sums);

 private:
  struct Shared {
    Asked asked = Asked::kErrors;
    TensorStats stats;
  };
  TensorStats MeasureAlone(const ChunkQuestion& question, const AccumulatedChunk* sums) const;
  TensorStats MeasureShared(const ChunkQuestion::Nearest& nearest);

  std::span<const float> values_;
  uint64_t first_index_;
  ChunkInputs inputs_;
  // What is the same at all scales, by the bits that rounding drops.
  std::array<std::optional<Shared>, 24> shared_;
};

// One question about a chunk alone.
TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question);

// As ChunkMeasurer::MeasureAndAccumulate.
TensorStats MeasureAndAccumulateChunk(std::span<const float> values, uint64_t first_index,
                                      const Measurement& question, const AccumulatedChunk& sums);

// Returns the float64 sum of squares of a chunk in the order of measure.h.
double SumOfSquaresOfChunk(std::span<const float> values);

// Looks at a chunk once for all questions about it.
ChunkInputs MeasureInputs(std::span<const float> values);

// Returns how many values of a chunk with finite inputs are below a magnitude, given by its bits.
size_t CountBelow(std::span<const float> values, uint32_t magnitude);

// The paths of ChunkMeasurer: kernels that apply, and the lane-generic one.
TensorStats MeasureNearest(std::span<const float> values, const ChunkQuestion::Nearest& nearest,
                           const ChunkInputs& inputs);
TensorStats MeasureRounded(std::span<const float> values, uint64_t first_index,
                           const Measurement& question, const ChunkQuestion::Rounded& rounded,
                           const ChunkInputs& inputs, const AccumulatedChunk* sums = nullptr);
TensorStats MeasureAnyChunk(std::span<const float> values, uint64_t first_index,
                            const Measurement& question, const AccumulatedChunk* sums = nullptr);

// MeasureChunk by the scalar reference alone: the definition that the kernels must equal.
TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                  const Measurement& question);

}  // namespace dlsim
