// SPDX-License-Identifier: Apache-2.0
#include "src/scaled/group_scale.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
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

// 2^exponent, -149 to 128; the last is infinity.
constexpr float PowerOfTwo(int exponent) {
  const uint32_t bits =
      exponent < -126 ? 1u << (149 + exponent) : static_cast<uint32_t>(exponent + 127) << 23;
  return std::bit_cast<float>(bits);
}

// What each E8M0 code stands for; code 0 multiplies values by what the format says.
constexpr std::array<GroupScale, 256> kOfE8m0 = [] {
  std::array<GroupScale, 256> scales;
  for (uint32_t code = 0; code < scales.size(); ++code) {
    const int exponent = static_cast<int>(code) - kE8m0Bias;
    scales[code] = {code, PowerOfTwo(-exponent), PowerOfTwo(exponent)};
  }
  return scales;
}();

// The E8M0 code of a ratio, rounded up or to the nearest power of two, as PTX's conversion to ue8m0
// rounds up: code 0, which stands for 2^-127, takes what is at most that.
uint32_t CodeOfRatio(float ratio, bool up) {
  const uint32_t bits = std::bit_cast<uint32_t>(ratio);
  const uint32_t exponent = bits >> 23, mantissa = bits & codec::kMantissaMask;
  if (exponent == 255) return kE8m0Infinite;
  if (exponent == 0) return mantissa > codec::kImplicitBit / 2 ? 1 : 0;
  const bool larger = mantissa > (up ? 0 : kMantissaOfSqrt2);
  return std::min(exponent + (larger ? 1 : 0), kE8m0Infinite);
}

float ScaleOf(const ScaledFormat& format, float max, float largest) {
  largest = std::fmax(largest, format.least);
  if (largest == 0 || !std::isfinite(largest)) return 1;
  const float ratio = max / largest / PowerOfTwo(format.margin);
  const float scale = std::isinf(ratio) ? kLargestFloat : ratio;
  if (!format.power_of_two) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & codec::kInfinityBits);
}

}  // namespace

GroupScale Float32Scale(float scale) {
  return {std::bit_cast<uint32_t>(scale), scale, 1.0f / scale};
}

float ScaleFor(const ScaledFormat& format, const Format& element, float largest) {
  return ScaleOf(format, static_cast<float>(MaxFinite(element)), largest);
}

GroupScales::GroupScales(const ScaledFormat& format, const Format& element, float largest)
    : format_(format),
      max_(static_cast<float>(MaxFinite(element))),
      highest_exponent_(std::ilogb(max_)),
      half_of_last_bit_(uint32_t{1} << (22 - element.mantissa_bits)),
      of_scales_(MakeCodecSpec(kToE4m3)) {
  const bool from_ratio = format.rule == ScaleRule::kUp || format.rule == ScaleRule::kNearest;
  // The originals do not multiply by 2^127.
  encode_of_zero_ = from_ratio ? 1.0f : PowerOfTwo(kE8m0Bias - 1);
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
  if (format_.rule == ScaleRule::kEven) bits += half_of_last_bit_;
  const int exponent = static_cast<int>(bits >> 23) - kE8m0Bias - highest_exponent_;
  return static_cast<uint32_t>(std::clamp(exponent, -kE8m0Bias, kE8m0Bias) + kE8m0Bias);
}

inline GroupScale GroupScales::OfE8m0(uint32_t code) const {
  GroupScale scale = kOfE8m0[code % kOfE8m0.size()];
  if (scale.code == 0) scale.encode = encode_of_zero_;
  return scale;
}

GroupScale GroupScales::OfCode(uint32_t code) const {
  if (format_.scale == ScaleType::kFloat32) return Float32Scale(std::bit_cast<float>(code));
  if (format_.scale == ScaleType::kE8m0) return OfE8m0(code);
  const float decode = std::bit_cast<float>(Decode(of_scales_, code)) * tensor_decode_;
  return {code, std::min(1.0f / decode, kLargestFloat), decode};
}

GroupScale GroupScales::Of(float largest) const {
  if (format_.scale == ScaleType::kFloat32) {
    return Float32Scale(ScaleOf(format_, max_, largest));
  }
  if (format_.scale == ScaleType::kE8m0) return OfE8m0(E8m0Code(largest));
  const float scale = std::min(largest * (tensor_encode_ * (1.0f / max_)), kLargestFloat);
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  return OfCode(EncodeWith<Rounding::kNearestEven>(of_scales_, bits, 0).code);
}

void GroupScales::OfEach(std::span<const uint32_t> largest, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < largest.size(); ++i) scales[i] = Of(std::bit_cast<float>(largest[i]));
}

void GroupScales::OfCodes(std::span<const uint32_t> codes, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < codes.size(); ++i) scales[i] = OfCode(codes[i]);
}

}  // namespace dlsim
