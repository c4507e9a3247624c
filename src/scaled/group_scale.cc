// SPDX-License-Identifier: Apache-2.0
#include "src/scaled/group_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "dlsim/codec.h"
#include "dlsim/scaled_codec.h"

namespace dlsim {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr int kE8m0Bias = 127;
constexpr uint32_t kE8m0Infinite = 254;  // what an infinite magnitude gets: the largest scale
constexpr uint32_t kMantissaOfSqrt2 = 0x3504F3;

constexpr Conversion kToE4m3 = {kE4m3, Rounding::kNearestEven, Overflow::kSaturate};

// 2^exponent, down to the subnormals of float32.
float PowerOfTwo(int exponent) { return std::ldexp(1.0f, exponent); }

// The exponent of the largest value.
int HighestExponent(const Format& element) { return std::ilogb(MaxFinite(element)); }

// The E8M0 code of a ratio, rounded up or to the nearest power of two, as PTX's conversion to ue8m0
// rounds up: code 0, which stands for 2^-127, takes what is at most that.
uint32_t CodeOfRatio(float ratio, bool up) {
  const uint32_t bits = std::bit_cast<uint32_t>(ratio);
  const uint32_t exponent = bits >> 23, mantissa = bits & codec::kMantissaMask;
  if (exponent == 255) return kE8m0Infinite;
  if (exponent == 0) return mantissa > codec::kImplicitBit / 2 ? 1 : 0;
  const bool larger = up ? mantissa > 0 : mantissa > kMantissaOfSqrt2;
  return larger && exponent < kE8m0Infinite ? exponent + 1 : exponent;
}

}  // namespace

GroupScale Float32Scale(float scale) {
  return {std::bit_cast<uint32_t>(scale), scale, 1.0f / scale};
}

float ScaleFor(const ScaledFormat& format, const Format& element, float largest) {
  largest = std::fmax(largest, format.least);
  if (largest == 0 || !std::isfinite(largest)) return 1;
  const float max = static_cast<float>(MaxFinite(element));
  const float ratio = max / largest / PowerOfTwo(format.margin);
  const float scale = std::isinf(ratio) ? kLargestFloat : ratio;
  if (!format.power_of_two) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & codec::kInfinityBits);
}

GroupScales::GroupScales(const ScaledFormat& format, const Format& element, float largest)
    : format_(format), element_(element), max_(static_cast<float>(MaxFinite(element))) {
  if (format.scale != ScaleType::kFp8) return;
  const float both = static_cast<float>(MaxFinite(kE4m3)) * max_;
  tensor_encode_ = std::min(both / largest, kLargestFloat);
  if (tensor_encode_ == 0) tensor_encode_ = 1;
  tensor_decode_ = 1.0f / tensor_encode_;
}

uint32_t GroupScales::E8m0Code(float largest) const {
  if (format_.rule == ScaleRule::kUp) return CodeOfRatio(largest / max_, true);
  if (format_.rule == ScaleRule::kNearest) return CodeOfRatio(largest / max_, false);
  uint32_t bits = std::bit_cast<uint32_t>(largest);
  if (format_.rule == ScaleRule::kEven) bits += uint32_t{1} << (22 - element_.mantissa_bits);
  const int exponent = static_cast<int>(bits >> 23) - kE8m0Bias - HighestExponent(element_);
  return static_cast<uint32_t>(std::clamp(exponent, -kE8m0Bias, kE8m0Bias) + kE8m0Bias);
}

GroupScale GroupScales::OfCode(uint32_t code) const {
  if (format_.scale == ScaleType::kFloat32) return Float32Scale(std::bit_cast<float>(code));
  if (format_.scale == ScaleType::kE8m0) {
    const int exponent = static_cast<int>(code) - kE8m0Bias;
    const bool from_ratio = format_.rule == ScaleRule::kUp || format_.rule == ScaleRule::kNearest;
    // The originals do not multiply by 2^127.
    const float lowest = from_ratio ? 1.0f : PowerOfTwo(kE8m0Bias - 1);
    return {code, code == 0 ? lowest : PowerOfTwo(-exponent), PowerOfTwo(exponent)};
  }
  const float scale = std::bit_cast<float>(Decode(MakeCodecSpec(kToE4m3), code));
  const float decode = scale * tensor_decode_;
  return {code, std::min(1.0f / decode, kLargestFloat), decode};
}

GroupScale GroupScales::Of(float largest) const {
  if (format_.scale == ScaleType::kFloat32) {
    return Float32Scale(ScaleFor(format_, element_, largest));
  }
  if (format_.scale == ScaleType::kE8m0) return OfCode(E8m0Code(largest));
  const float scale = std::min(largest * (tensor_encode_ * (1.0f / max_)), kLargestFloat);
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  return OfCode(Encode(MakeCodecSpec(kToE4m3), Rounding::kNearestEven, bits).code);
}

}  // namespace dlsim
