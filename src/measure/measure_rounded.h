// SPDX-License-Identifier: Apache-2.0
// Which measurements the kernels of measure_rounded-inl.h answer, and their constants: any rounding
// mode and format, of chunks whose inputs are finite and that were encoded and decoded before.
#pragma once

#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "src/measure/chunk_inputs.h"

namespace dlsim {

// Magnitudes are float32 bits of scaled values and decoded results.
struct RoundedSpec {
  uint32_t min_normal_bits = 0;  // results below this are subnormal
  uint32_t plain_min_bits = 0;   // values from here to max_bits have normal, finite results
  uint32_t max_bits = 0;
  // Positive and negative values beyond these overflow where results saturate, unless that depends
  // on chance or on the parity of the largest result.
  uint32_t positive_limit_bits = 0, negative_limit_bits = 0;
  bool has_limits = false;
  float scale = 1.0f;
  float inverse_scale = 1.0f;  // of magnitudes, as the next
  double exact_inverse = 1.0;
  bool unscales_exactly = false;  // float32 holds every finite result
  bool saturates = false;
};

// How the errors and the squares of results are found.
enum class RoundedResults : uint8_t {
  kExact,  // unscaling is
  kFinite,
  kInfinite,    // some are not finite
  kSaturating,  // some may be clamped
};

// A kernel: what it need not look at is left out when it is compiled.
struct RoundedKernel {
  bool small = false;  // there may be results that are subnormal or became zero
  RoundedResults results = RoundedResults::kExact;
};

// Returns nothing for scales without a finite reciprocal.
std::optional<RoundedSpec> MakeRoundedSpec(const CodecSpec& spec, const Measurement& question);

// Returns the kernel that measures a chunk, if any does.
std::optional<RoundedKernel> KernelFor(const RoundedSpec& spec, const ChunkInputs& inputs);

}  // namespace dlsim
