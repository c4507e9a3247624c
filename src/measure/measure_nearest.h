// SPDX-License-Identifier: Apache-2.0
// Which measurements the kernels of measure_nearest-inl.h answer, and their constants: rounding to
// nearest even, of chunks whose inputs are finite.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "src/measure/chunk_inputs.h"
#include "src/measure/measure_element.h"

namespace dlsim {

// Magnitudes are float32 bits: of scaled values and results where the kernel multiplies, else of
// what they are without the scale.
struct NearestSpec {
  uint32_t dropped_bits = 0;
  uint32_t min_normal_bits = 0;  // results below this are subnormal
  uint32_t max_bits = 0;         // results beyond this overflow
  uint32_t limit_bits = 0;       // values beyond this are not for the kernel
  // Where !multiplies: float32 rounds a scaled value below this, too; 0: that changes no result.
  uint32_t rounded_product_bits = 0;
  float scale = 1.0f, inverse_scale = 1.0f;  // absolute values; not needed where !multiplies
  double exact_inverse = 1.0;                // the same
  float overflow_result = 0;                 // unscaled
  bool multiplies = true;
  bool only_normal = false;  // chunks with small results are not for the kernel
  bool flushes = false, saturates = false;
};

// Which small results a chunk has.
enum class SmallResults : uint8_t {
  kNone,
  kSubnormal,  // none that became zero
  kAny,
  kFlushed,  // all small ones are zero
  kOnly,     // for errors alone: all values are below the smallest normal result
};

// What becomes of results that overflow, if there are any.
enum class Overflowing : uint8_t { kNone, kToInfinity, kSaturating };

// A kernel: what it need not look at is left out when it is compiled.
struct NearestKernel {
  bool multiplies = false;
  bool errors_only = false;
  SmallResults small = SmallResults::kNone;
  Overflowing overflowing = Overflowing::kNone;
  bool rounds_products = false;

  // Rounding of normal results is the same at all scales that are not multiplied with.
  bool HasScale() const {
    return multiplies || small != SmallResults::kNone || overflowing != Overflowing::kNone;
  }
};

// The largest exponent field of C for which 2C is finite; see NearestRows::Round.
inline constexpr uint32_t kMaxAdditionExponent = 253;

// Returns nothing where no kernel applies: formats without subnormals, other rounding modes, scales
// without a finite reciprocal.
inline std::optional<NearestSpec> MakeMultiplyingSpec(const CodecSpec& spec,
                                                      const Measurement& question) {
  const Conversion& conversion = question.conversion;
  const Unscaling unscaling = MakeUnscaling(question.scale);
  if (!spec.gradual || conversion.rounding != Rounding::kNearestEven) return std::nullopt;
  if (!std::isfinite(question.scale) || !std::isfinite(unscaling.inverse)) return std::nullopt;
  NearestSpec nearest;
  nearest.dropped_bits = spec.dropped_bits;
  nearest.min_normal_bits = spec.min_normal_bits == 0 ? codec::kImplicitBit : spec.min_normal_bits;
  nearest.max_bits = spec.plain_max_bits;
  nearest.limit_bits = ((kMaxAdditionExponent + 1 - spec.dropped_bits) << 23) - 1;
  nearest.scale = std::fabs(question.scale);
  nearest.inverse_scale = std::fabs(unscaling.inverse);
  nearest.exact_inverse = unscaling.of_magnitudes;
  nearest.overflow_result =
      std::bit_cast<float>(Decode(spec, spec.overflow_code)) * nearest.inverse_scale;
  nearest.flushes = conversion.subnormals == Subnormals::kFlushToZero;
  nearest.saturates = spec.saturates;
  return nearest;
}

// Measuring at scale 2^k is measuring, at scale 1, the format whose bias is larger by k: the two
// multiplications are exact and can be left out. That takes a float32 that holds the smallest and
// the largest result; the smallest one only where there are small results. Formats whose range ends
// where that of float32 does are rounded to float32's subnormals first, as the scaled values are:
// multiplying would take ten times as long there.
inline std::optional<NearestSpec> WithoutMultiplications(NearestSpec nearest) {
  const uint32_t bits = std::bit_cast<uint32_t>(nearest.scale);
  const int k = static_cast<int>(bits >> 23) - 127;
  if ((bits & codec::kMantissaMask) != 0 || k < -126 || k > 126) return std::nullopt;
  const int dropped = static_cast<int>(nearest.dropped_bits);
  const int min_normal = static_cast<int>(nearest.min_normal_bits >> 23);
  const int min_positive = min_normal - 23 + dropped;
  nearest.only_normal = k != 0 && min_positive - k < 2;
  // The smallest C must be finite, too.
  if (min_normal - k + dropped > static_cast<int>(kMaxAdditionExponent)) return std::nullopt;
  nearest.multiplies = false;
  nearest.min_normal_bits = static_cast<uint32_t>(std::max(1, min_normal - k)) << 23;
  // Where float32 ends below the largest result none is beyond it.
  const int64_t max_bits = int64_t{nearest.max_bits} - int64_t{k} * (1 << 23);
  nearest.max_bits = static_cast<uint32_t>(std::min<int64_t>(max_bits, codec::kInfinityBits - 1));
  // Scaled values that float32 rounds stay below half of the smallest result of other formats.
  if (k != 0 && min_positive < 2 && !nearest.only_normal) {
    if (max_bits < codec::kInfinityBits) return std::nullopt;
    nearest.rounded_product_bits = static_cast<uint32_t>(1 - k) << 23;
  }
  return nearest;
}

// Returns the exponent field of half the smallest positive result: a tie, which becomes zero.
inline int HalfSmallestExponent(const NearestSpec& nearest) {
  return static_cast<int>(nearest.min_normal_bits >> 23) - 24 +
         static_cast<int>(nearest.dropped_bits);
}

// Returns which small results there are. `smallest_less_one`: of the magnitudes that are not zero,
// as the kernel sees them.
inline SmallResults SmallResultsOf(const NearestSpec& nearest, uint32_t smallest_less_one) {
  if (smallest_less_one >= nearest.min_normal_bits - 1) return SmallResults::kNone;
  if (nearest.flushes) return SmallResults::kFlushed;
  const int half = HalfSmallestExponent(nearest);
  const bool nonzero = half > 0 && smallest_less_one >= static_cast<uint32_t>(half) << 23;
  return nonzero ? SmallResults::kSubnormal : SmallResults::kAny;
}

// Multiplying keeps the order of magnitudes. A smallest one that becomes zero counts as the
// smallest of all.
inline uint32_t SmallestScaledLessOne(const NearestSpec& nearest, const ChunkInputs& inputs) {
  if (!nearest.multiplies || inputs.absmax == 0) return inputs.smallest_less_one;
  const float smallest = std::bit_cast<float>(inputs.smallest_less_one + 1) * nearest.scale;
  const uint32_t bits = std::bit_cast<uint32_t>(smallest);
  return bits == 0 ? 0 : bits - 1;
}

// Returns the answer where the extremes of a chunk tell it: all results overflow, or become zero.
// `nearest` multiplies.
std::optional<TensorStats> AnswerFromExtremes(const NearestSpec& nearest, const ChunkInputs& inputs,
                                              uint64_t elements);

// Returns the kernel that measures a chunk, if any does. `nearest` is the spec without
// multiplications or, where that has none, the one with them.
inline std::optional<NearestKernel> KernelFor(const NearestSpec& nearest, const ChunkInputs& inputs,
                                              bool errors_only) {
  if (!inputs.finite) return std::nullopt;
  const float absmax = nearest.multiplies ? inputs.absmax * nearest.scale : inputs.absmax;
  const uint32_t largest = std::bit_cast<uint32_t>(absmax);
  if (largest > nearest.limit_bits) return std::nullopt;
  NearestKernel kernel;
  kernel.multiplies = nearest.multiplies;
  if (largest > nearest.max_bits) {
    kernel.overflowing = nearest.saturates ? Overflowing::kSaturating : Overflowing::kToInfinity;
  }
  kernel.small = SmallResultsOf(nearest, SmallestScaledLessOne(nearest, inputs));
  if (nearest.only_normal && kernel.small != SmallResults::kNone) return std::nullopt;
  if (nearest.multiplies) {
    if (kernel.small == SmallResults::kSubnormal) kernel.small = SmallResults::kAny;
    return kernel;
  }
  // The error of a clamped value needs more bits than float32 has.
  if (kernel.overflowing == Overflowing::kSaturating) return std::nullopt;
  kernel.errors_only = errors_only;
  if (errors_only && kernel.small == SmallResults::kSubnormal) kernel.small = SmallResults::kAny;
  kernel.rounds_products = nearest.rounded_product_bits > 0 && kernel.small != SmallResults::kNone;
  const bool all_small = errors_only && largest < nearest.min_normal_bits;
  if (all_small && kernel.small == SmallResults::kAny && !kernel.rounds_products) {
    kernel.small = SmallResults::kOnly;
  }
  return kernel;
}

}  // namespace dlsim
