// SPDX-License-Identifier: Apache-2.0
// The operations of PyTorch that optimizers are made of, on one element: computed in float32 and
// rounded to the format of the tensor, as its kernels for the CPU do (docs/updates.md). What is
// fused there is std::fma here; what is not is rounded in between.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/format.h"

namespace dlsim::sim {

// What a float32 value becomes in a tensor: itself, or the nearest value of a format, ties to even.
struct KeepFloat32 {
  float operator()(float value) const { return value; }
};

inline float NearestIn(const CodecSpec& spec, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t code = EncodeWith<Rounding::kNearestEven>(spec, bits, 0).code;
  return std::bit_cast<float>(Decode(spec, code));
}

// For the formats that are asked for most, so that the compiler knows the constants.
template <size_t kRow>
struct KeepRow {
  float operator()(float value) const {
    constexpr CodecSpec kSpec = MakeCodecSpec({kFormats[kRow].format});
    return NearestIn(kSpec, value);
  }
};
using KeepFp16 = KeepRow<0>;
using KeepBf16 = KeepRow<1>;

struct KeepFormat {
  CodecSpec spec;
  float operator()(float value) const { return NearestIn(spec, value); }
};

// The names are those of torch's operations. Factors and divisors are float32 numbers, while
// addends and factors of add are rounded to the tensor's format first.
template <class Keep>
class TensorOps {
 public:
  explicit TensorOps(const Keep& keep) : keep_(keep) {}

  float Addend(double number) const { return keep_(static_cast<float>(number)); }

  float Stored(float value) const { return keep_(value); }
  float Mul(float x, float factor) const { return keep_(x * factor); }
  float Div(float x, float divisor) const { return keep_(x / divisor); }
  float Add(float x, float addend) const { return keep_(x + addend); }
  float Sqrt(float x) const { return keep_(std::sqrt(x)); }
  float Rsqrt(float x) const { return keep_(1 / std::sqrt(x)); }

  // x + alpha * y
  float AddScaled(float x, float y, float alpha) const { return keep_(std::fma(alpha, y, x)); }

  // x + weight * (y - x), from the nearer end.
  float Lerp(float x, float y, float weight) const {
    const bool near = std::fabs(weight) < 0.5f;
    return keep_(std::fma(near ? weight : weight - 1, y - x, near ? x : y));
  }

  // x + value * y * z
  float AddCMul(float x, float y, float z, float value) const {
    return keep_(std::fma(value * y, z, x));
  }

 private:
  Keep keep_;
};

// torch.maximum: NaN if one is.
inline float Maximum(float x, float y) { return std::isnan(x) || x > y ? x : y; }

}  // namespace dlsim::sim
