// SPDX-License-Identifier: Apache-2.0
// How a block reads a piece: 4 neighbouring elements per thread at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "load_value.cuh"

namespace dlsim::gpu {

struct FourBits {
  uint32_t bits[4];
};

template <DType kDType>
class FourReader {
 public:
  __device__ explicit FourReader(const Piece& piece)
      : piece_(piece),
        is_aligned_(reinterpret_cast<uintptr_t>(piece.values) % (4 * DTypeSize(kDType)) == 0) {}

  // The elements from `first` on, a multiple of 4; those from piece.count on are 0.
  __device__ FourBits Read(uint32_t first) const {
    FourBits four = {};
    if (is_aligned_ && first + 4 <= piece_.count) {
      if constexpr (kDType == DType::kF32) {
        const uint4 v = *reinterpret_cast<const uint4*>(piece_.values + size_t{first} * 4);
        return Scaled({{v.x, v.y, v.z, v.w}});
      } else if constexpr (kDType != DType::kF64) {
        const uint2 v = *reinterpret_cast<const uint2*>(piece_.values + size_t{first} * 2);
        return Scaled({{Widen(v.x), Widen(v.x >> 16), Widen(v.y), Widen(v.y >> 16)}});
      }
    }
    for (uint32_t i = 0; i < 4; ++i) {
      if (first + i < piece_.count) {
        four.bits[i] = BitCast<uint32_t>(LoadValue<kDType>(piece_, first + i));
      }
    }
    return four;
  }

 private:
  __device__ static uint32_t Widen(uint32_t element) {
    return BitCast<uint32_t>(ToFloat<kDType>(static_cast<uint16_t>(element)));
  }
  __device__ FourBits Scaled(FourBits four) const {
    if (piece_.inverse_grad_scale != 1.0f) {
      for (uint32_t& bits : four.bits) {
        bits = BitCast<uint32_t>(BitCast<float>(bits) * piece_.inverse_grad_scale);
      }
    }
    return four;
  }

  const Piece& piece_;
  bool is_aligned_;
};

}  // namespace dlsim::gpu
