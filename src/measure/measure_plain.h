// SPDX-License-Identifier: Apache-2.0
// Which measurements the fast kernels of measure_plain-inl.h, and without multiplication of
// measure_exact-inl.h, answer, and their constants.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "src/measure/measure_element.h"

namespace dlsim {

struct PlainSpec {
  uint32_t dropped_bits = 0;
  uint32_t min_normal_bits = 0;              // results below this are subnormal
  uint32_t max_bits = 0;                     // largest magnitude that is plain
  float scale = 1.0f, inverse_scale = 1.0f;  // absolute values; not needed where !multiplies
  double exact_inverse = 1.0;                // the same
  bool multiplies = true;
  bool flushes = false;
};

// The largest exponent field of C for which 2C is finite; see ExactRows::Round.
inline constexpr int kMaxAdditionExponent = 253;

// Measuring at scale 2^k is measuring, at scale 1, the format whose bias is larger by k: the two
// multiplications are exact and can be left out. That takes a float32 that holds the smallest
// result, and inputs whose scaled value float32 rounds to stay below half of it.
inline void LeaveOutExactScale(const CodecSpec& spec, PlainSpec& plain) {
  const uint32_t bits = std::bit_cast<uint32_t>(plain.scale);
  const int k = static_cast<int>(bits >> 23) - 127;
  if ((bits & codec::kMantissaMask) != 0 || k < -126 || k > 126) return;
  const int min_normal = static_cast<int>(plain.min_normal_bits >> 23);
  const int min_positive = min_normal - 23 + static_cast<int>(spec.dropped_bits);
  if (k != 0 && (min_positive < 2 || min_positive - k < 2)) return;
  // The smallest C must be finite, too.
  if (min_normal - k + static_cast<int>(spec.dropped_bits) > kMaxAdditionExponent) return;
  plain.multiplies = false;
  plain.min_normal_bits = static_cast<uint32_t>(min_normal - k) << 23;
  const int64_t max_bits = int64_t{spec.plain_max_bits} - int64_t{k} * (1 << 23);
  plain.max_bits = static_cast<uint32_t>(std::clamp<int64_t>(max_bits, 0, plain.max_bits));
}

// Returns nothing where the kernel does not apply: formats without subnormals, other rounding
// modes.
inline std::optional<PlainSpec> MakePlainSpec(const CodecSpec& spec, const Measurement& question) {
  const Conversion& conversion = question.conversion;
  if (!spec.gradual || conversion.rounding != Rounding::kNearestEven) return std::nullopt;
  PlainSpec plain;
  plain.dropped_bits = spec.dropped_bits;
  plain.min_normal_bits = spec.min_normal_bits == 0 ? codec::kImplicitBit : spec.min_normal_bits;
  plain.scale = std::fabs(question.scale);
  const Unscaling unscaling = MakeUnscaling(question.scale);
  plain.inverse_scale = std::fabs(unscaling.inverse);
  plain.exact_inverse = unscaling.of_magnitudes;
  plain.flushes = conversion.subnormals == Subnormals::kFlushToZero;
  const uint32_t limit_exponent = kMaxAdditionExponent + 1 - spec.dropped_bits;
  const uint32_t addition_limit = (limit_exponent << 23) - 1;
  plain.max_bits = addition_limit;
  LeaveOutExactScale(spec, plain);
  plain.max_bits =
      std::min(plain.max_bits, plain.multiplies ? spec.plain_max_bits : addition_limit);
  return plain;
}

}  // namespace dlsim
