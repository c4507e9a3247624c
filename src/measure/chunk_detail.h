// SPDX-License-Identifier: Apache-2.0
// What some policies and clipping ask of a chunk of one part: from the magnitudes at which the
// results pass a limit where rounding keeps their order, else from the results.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/gradient_detail.h"
#include "dlsim/tensor_stats.h"
#include "src/measure/chunk_inputs.h"
#include "src/measure/measure_chunk.h"

namespace dlsim {

// Looks at gradients, unscaled and still scaled.
GradientDetail DetailOf(const DetailQuestion& question, std::span<const float> unscaled,
                        std::span<const float> scaled);

// For chunk after chunk of the same tensor.
class ChunkDetail {
 public:
  ChunkDetail(const DetailQuestion& detail, const Measurement& measurement);

  // `inputs` and `stats` are those of the chunk.
  GradientDetail Find(std::span<const float> values, uint64_t first_index,
                      const ChunkInputs& inputs, const TensorStats& stats);

 private:
  struct Result {
    float scaled, unscaled;  // magnitudes
  };
  Result ResultOf(uint32_t magnitude) const;
  template <class Passes>
  uint32_t FirstMagnitude(const Passes& passes) const;
  GradientDetail FromMagnitudes(std::span<const float> values, const ChunkInputs& inputs) const;

  DetailQuestion detail_;
  Measurement measurement_;
  CodecSpec spec_;
  bool keeps_order_;               // of magnitudes
  uint32_t edge_ = 0, limit_ = 0;  // the first finite magnitudes whose results pass them
  std::vector<float> unscaled_, scaled_;
};

}  // namespace dlsim
