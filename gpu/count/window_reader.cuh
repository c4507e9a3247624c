// SPDX-License-Identifier: Apache-2.0
// How a block reads a piece: 4 neighboring elements per thread at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "gpu/base/load_value.cuh"

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

  __device__ bool is_aligned() const { return is_aligned_; }

  // The elements from `first` on, a multiple of 4; those from piece.count on are 0.
  __device__ FourBits Read(uint32_t first) const {
    FourBits four = {};
    for (uint32_t i = 0; i < 4; ++i) {
      if (first + i < piece_.count) {
        four.bits[i] = BitCast<uint32_t>(LoadValue<kDType>(piece_, first + i));
      }
    }
    return four;
  }

  // Elements that are all there, of an aligned piece. Reading and use are apart, so that there is
  // something to do until memory answers.
  using Elements = std::conditional_t<DTypeSize(kDType) == 2, uint2,
                                      std::conditional_t<DTypeSize(kDType) == 4, uint4, FourBits>>;
  __device__ Elements Fetch(uint32_t first) const {
    if constexpr (kDType == DType::kF64) {
      return Read(first);
    } else {
      return __ldg(reinterpret_cast<const Elements*>(piece_.values) + first / 4);
    }
  }
  __device__ FourBits Convert(const Elements& v) const {
    if constexpr (kDType == DType::kF64) {
      return v;
    } else if constexpr (kDType == DType::kF32) {
      return Scaled({{v.x, v.y, v.z, v.w}});
    } else {
      return Scaled({{Widen(v.x), Widen(v.x >> 16), Widen(v.y), Widen(v.y >> 16)}});
    }
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

// The same for any type, where speed does not matter.
class AnyReader {
 public:
  __device__ explicit AnyReader(const Piece& piece) : piece_(piece) {}

  __device__ FourBits Read(uint32_t first) const {
    FourBits four = {};
    for (uint32_t i = 0; i < 4 && first + i < piece_.count; ++i) {
      four.bits[i] = BitCast<uint32_t>(LoadValue(piece_, first + i));
    }
    return four;
  }

 private:
  const Piece& piece_;
};

}  // namespace dlsim::gpu
