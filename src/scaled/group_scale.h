// SPDX-License-Identifier: Apache-2.0
// The scale of a group of elements, from its largest magnitude.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/scaled_format.h"

namespace dlsim {

struct GroupScale {
  uint32_t code = 0;  // see ScaledCodes::scales
  float encode = 1;   // multiplies values before they are rounded
  float decode = 1;   // multiplies elements
};

namespace group_scale {

inline constexpr float kLargestFloat = 0x1.fffffep127f;
inline constexpr int kE8m0Bias = 127;
inline constexpr uint32_t kE8m0Infinite = 254;  // of an infinite magnitude: the largest scale
inline constexpr uint32_t kMantissaOfSqrt2 = 0x3504F3;

constexpr float Smaller(float a, float b) { return a < b ? a : b; }

// 2^exponent, -149 to 128; the last is infinity.
constexpr float PowerOfTwo(int exponent) {
  return BitCast<float>(exponent < -126 ? 1u << (149 + exponent)
                                        : static_cast<uint32_t>(exponent + 127) << 23);
}

// The E8M0 code of a ratio, rounded up or to the nearest power of two, as PTX's conversion to ue8m0
// rounds up: code 0, which stands for 2^-127, takes what is at most that.
constexpr uint32_t CodeOfRatio(float ratio, bool up) {
  const uint32_t bits = BitCast<uint32_t>(ratio);
  const uint32_t exponent = bits >> 23, mantissa = bits & codec::kMantissaMask;
  if (exponent == 255) return kE8m0Infinite;
  if (exponent == 0) return mantissa > codec::kImplicitBit / 2 ? 1 : 0;
  const uint32_t code = exponent + (mantissa > (up ? 0 : kMantissaOfSqrt2) ? 1 : 0);
  return code < kE8m0Infinite ? code : kE8m0Infinite;
}

}  // namespace group_scale

// A float32 scale with its reciprocal.
inline GroupScale Float32Scale(float scale) {
  return {BitCast<uint32_t>(scale), scale, 1.0f / scale};
}

// What the groups of a tensor have in common.
class GroupScales {
 public:
  // `largest`: magnitude in the tensor, which gives its scale, of ScaleType::kFp8.
  GroupScales(const ScaledFormat& format, const Format& element, float largest = 0);

  // Returns the scale of a group with this largest magnitude.
  GroupScale Of(float largest) const {
    using namespace group_scale;
    if (type_ == ScaleType::kFloat32) return Float32Scale(Float32Of(largest));
    if (type_ == ScaleType::kE8m0) return OfE8m0(E8m0Code(largest));
    const float scale = Smaller(largest * (tensor_encode_ * (1.0f / max_)), kLargestFloat);
    const uint32_t bits = BitCast<uint32_t>(scale);
    return OfCode(EncodeWith<Rounding::kNearestEven>(of_scales_, bits, 0).code);
  }

  // Returns the scale of a code.
  GroupScale OfCode(uint32_t code) const {
    using namespace group_scale;
    if (type_ == ScaleType::kFloat32) return Float32Scale(BitCast<float>(code));
    if (type_ == ScaleType::kE8m0) return OfE8m0(code);
    const float decode = BitCast<float>(Decode(of_scales_, code)) * tensor_decode_;
    return {code, Smaller(1.0f / decode, kLargestFloat), decode};
  }

  // Returns the scale of ScaleType::kFloat32.
  float Float32Of(float largest) const {
    using namespace group_scale;
    if (largest < least_) largest = least_;
    if (largest == 0 || largest > kLargestFloat) return 1;
    const float scale = Smaller(max_ / largest / margin_, kLargestFloat);
    if (!power_of_two_) return scale;
    return BitCast<float>(BitCast<uint32_t>(scale) & codec::kInfinityBits);
  }

  float tensor_scale() const { return tensor_decode_; }
  void set_tensor_scale(float decode) { tensor_decode_ = decode; }

 private:
  uint32_t E8m0Code(float largest) const {
    using namespace group_scale;
    if (rule_ == ScaleRule::kUp) return CodeOfRatio(largest / max_, true);
    if (rule_ == ScaleRule::kNearest) return CodeOfRatio(largest / max_, false);
    uint32_t bits = BitCast<uint32_t>(largest);
    if (rule_ == ScaleRule::kEven) bits += half_of_last_bit_;
    const int code = static_cast<int>(bits >> 23) - highest_exponent_;
    return code < 0 ? 0 : static_cast<uint32_t>(code);
  }

  GroupScale OfE8m0(uint32_t code) const {
    using namespace group_scale;
    code &= 0xFF;
    const int exponent = static_cast<int>(code) - kE8m0Bias;
    return {code, code == 0 ? encode_of_zero_ : PowerOfTwo(-exponent), PowerOfTwo(exponent)};
  }

  ScaleType type_;
  ScaleRule rule_;
  bool power_of_two_;
  float least_, margin_;       // of ScaleType::kFloat32
  float max_;                  // of the elements
  int highest_exponent_;       // of max_
  uint32_t half_of_last_bit_;  // of the elements, in float32 bits
  float encode_of_zero_;       // of code 0 in E8M0, which multiplies values by what the format says
  float tensor_encode_ = 1, tensor_decode_ = 1;  // of ScaleType::kFp8
  CodecSpec of_scales_;                          // the same
};

}  // namespace dlsim
