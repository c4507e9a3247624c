// SPDX-License-Identifier: Apache-2.0
// Which measurements the kernels of measure_rounded-inl.h answer, and their constants: any rounding
// mode and format, of chunks whose inputs are finite and that are rounded first.
#pragma once

#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "src/measure/chunk_inputs.h"

namespace dlsim {

// Magnitudes are float32 bits of scaled values and decoded results.
struct RoundedSpec {
  Rounding rounding = Rounding::kNearestEven;
  uint32_t dropped_bits = 0;
  uint32_t min_normal_bits = 0;  // results below this are subnormal
  uint32_t plain_min_bits = 0;   // values from here to max_bits have normal, finite results
  uint32_t max_bits = 0;
  uint32_t past_max_bits = 0;  // what overflow leads to
  uint32_t limit_bits = 0;     // values beyond this are not for ValueRounder; 0: none is
  // Of values that are not scaled: float32 would round scaled ones below this; 0: it does not.
  uint32_t rounded_product_bits = 0;
  float scale = 1.0f;
  float inverse_scale = 1.0f;
  double exact_inverse = 1.0;     // of magnitudes
  bool unscales_exactly = false;  // float32 holds every finite result
  bool flushes = false, saturates = false;
};

// What the results of a chunk may be.
enum class RoundedResults : uint8_t {
  kFinite,
  kInfinite,    // some are not finite
  kSaturating,  // some are to be clamped
};

// A kernel: what it need not look at is left out when it is compiled.
struct RoundedKernel {
  bool small = false;         // there may be results that are subnormal or became zero
  bool exact_errors = false;  // float32 holds every error
  RoundedResults results = RoundedResults::kFinite;
};

// Returns nothing for scales without a finite reciprocal.
std::optional<RoundedSpec> MakeRoundedSpec(const CodecSpec& spec, const Measurement& question);

// As the function of this name for NearestSpec: of formats whose range ends where that of float32
// does, at scales below 1, where multiplying would lead to float32's subnormals.
std::optional<RoundedSpec> WithoutMultiplications(RoundedSpec spec);

// Returns the kernel that measures a chunk, if any does.
std::optional<RoundedKernel> KernelFor(const RoundedSpec& spec, const ChunkInputs& inputs);

}  // namespace dlsim
