// SPDX-License-Identifier: Apache-2.0
// The definition of a measurement, element by element.
#include <bit>
#include <cstddef>

#include "dlsim/measure.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/measure_element.h"

namespace dlsim {

TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                  const Measurement& question) {
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  TensorStats stats;
  ChunkSums sums;
  stats.elements = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * question.scale);
    const bool stochastic = question.conversion.rounding == Rounding::kStochastic;
    const uint32_t random = stochastic ? RandomBits(question.random, first_index + i) : 0;
    const EncodeResult result = Encode(spec, question.conversion.rounding, scaled, random);
    MeasureElement(spec, MakeUnscaling(question.scale), std::bit_cast<uint32_t>(values[i]), scaled,
                   result, stats, sums.Lane(i));
  }
  AddSums(sums, stats);
  return stats;
}

}  // namespace dlsim
