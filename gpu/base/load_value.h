// SPDX-License-Identifier: Apache-2.0
// Elements of a piece as float32: the twin of LoadFloats on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"
#include "gpu/base/piece.h"

namespace dlsim::gpu {

// How elements lie in memory.
template <DType kDType>
struct ElementOf {
  using Type = uint16_t;
};
template <>
struct ElementOf<DType::kF32> {
  using Type = float;
};
template <>
struct ElementOf<DType::kF64> {
  using Type = double;
};

// What conversions and multiplications make of NaN differs between machines: CUDA returns one NaN
// for all. These two do as x86 does and so as the kernels for the CPU there: NaN keeps its sign and
// top mantissa bits and becomes quiet, and a product without a value is the negative quiet NaN.
inline constexpr uint32_t kQuietBit = 0x00400000;
inline constexpr uint32_t kDefaultNan = 0xFFC00000;

// Returns the bits of a value times `scale` in float32.
DLSIM_HOST_DEVICE inline uint32_t ScaleBits(uint32_t bits, float scale) {
  const float value = BitCast<float>(bits), product = value * scale;
  const uint32_t nan_of_scale = scale == scale ? kDefaultNan : BitCast<uint32_t>(scale) | kQuietBit;
  const uint32_t nan = value == value ? nan_of_scale : bits | kQuietBit;
  return product == product ? BitCast<uint32_t>(product) : nan;
}

// Returns the bits of a float64 rounded to float32, to nearest even.
DLSIM_HOST_DEVICE inline uint32_t NarrowBits(double value) {
  const float narrow = static_cast<float>(value);
  if (value == value) return BitCast<uint32_t>(narrow);
  const uint64_t bits = BitCast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 32) & codec::kSignBit;
  const uint32_t mantissa = static_cast<uint32_t>(bits >> 29) & codec::kMantissaMask;
  return sign | codec::kInfinityBits | kQuietBit | mantissa;
}

// Returns one element as float32, as recorded.
template <DType kDType>
DLSIM_HOST_DEVICE inline float ToFloat(typename ElementOf<kDType>::Type element) {
  if constexpr (kDType == DType::kF32) {
    return element;
  } else if constexpr (kDType == DType::kF64) {
    return BitCast<float>(NarrowBits(element));
  } else {
    constexpr CodecSpec kSpec = MakeCodecSpec({kDType == DType::kF16 ? kFp16 : kBf16});
    return BitCast<float>(Decode(kSpec, element));
  }
}

// Returns element i of a piece whose elements are of kDType, unscaled.
template <DType kDType>
DLSIM_HOST_DEVICE inline float LoadValue(const Piece& piece, uint32_t i) {
  using Element = typename ElementOf<kDType>::Type;
  const float value = ToFloat<kDType>(reinterpret_cast<const Element*>(piece.values)[i]);
  if (piece.inverse_grad_scale == 1.0f) return value;
  return BitCast<float>(ScaleBits(BitCast<uint32_t>(value), piece.inverse_grad_scale));
}

template <DType kDType>
struct DTypeTag {
  static constexpr DType value = kDType;
};

// Calls body(DTypeTag) for a type known at run time; all threads of a block take one way.
template <class Body>
DLSIM_HOST_DEVICE inline void DispatchDType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(DTypeTag<DType::kF32>());
    case DType::kF64:
      return body(DTypeTag<DType::kF64>());
    case DType::kF16:
      return body(DTypeTag<DType::kF16>());
    case DType::kBF16:
      return body(DTypeTag<DType::kBF16>());
  }
}

// The same of a piece of any type, where speed does not matter.
DLSIM_HOST_DEVICE inline float LoadValue(const Piece& piece, uint32_t i) {
  float value = 0;
  DispatchDType(piece.dtype,
                [&](auto dtype) { value = LoadValue<decltype(dtype)::value>(piece, i); });
  return value;
}

}  // namespace dlsim::gpu
