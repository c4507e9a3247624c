// SPDX-License-Identifier: Apache-2.0
// Elements of a piece as float32: the twin of LoadFloats on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"
#include "piece.h"

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

// Returns one element as float32, as recorded.
template <DType kDType>
DLSIM_HOST_DEVICE inline float ToFloat(typename ElementOf<kDType>::Type element) {
  if constexpr (kDType == DType::kF32 || kDType == DType::kF64) {
    return static_cast<float>(element);
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
  return piece.inverse_grad_scale == 1.0f ? value : value * piece.inverse_grad_scale;
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

}  // namespace dlsim::gpu
