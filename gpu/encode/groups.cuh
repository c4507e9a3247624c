// SPDX-License-Identifier: Apache-2.0
// Groups of eight consecutive elements, which one thread loads and stores with accesses of 16
// bytes. What is read or written once need not stay in the cache.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu/base/load_value.cuh"
#include "gpu/base/unroll.h"

namespace dlsim::gpu {

inline constexpr uint32_t kGroupElements = 8;

// What a thread block converts at once. Each thread takes every kConvertThreads-th group.
inline constexpr uint32_t kConvertThreads = 256;
inline constexpr uint32_t kThreadGroups = 2;
inline constexpr uint32_t kTileElements = kConvertThreads * kThreadGroups * kGroupElements;

// Returns the place of this thread's group number i in a tile.
__device__ inline uint32_t GroupBegin(uint32_t i) {
  return (i * kConvertThreads + threadIdx.x) * kGroupElements;
}

// Whether groups can be accessed in vectors.
__device__ inline bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0;
}

template <class Element>
__device__ inline Element ElementOfWords(const uint32_t* words, uint32_t i) {
  if constexpr (sizeof(Element) == 8) {
    return BitCast<Element>(uint64_t{words[2 * i + 1]} << 32 | words[2 * i]);
  } else if constexpr (sizeof(Element) == 4) {
    return BitCast<Element>(words[i]);
  } else {
    return static_cast<Element>(words[i / 2] >> (16 * (i % 2)));
  }
}

template <class Element>
__device__ inline void LoadGroup(const Element* from, Element (&elements)[kGroupElements]) {
  constexpr uint32_t kVectors = kGroupElements * sizeof(Element) / sizeof(uint4);
  uint32_t words[4 * kVectors];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint4 vector = __ldcs(reinterpret_cast<const uint4*>(from) + i);
    words[4 * i] = vector.x;
    words[4 * i + 1] = vector.y;
    words[4 * i + 2] = vector.z;
    words[4 * i + 3] = vector.w;
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kGroupElements; ++i) elements[i] = ElementOfWords<Element>(words, i);
}

// Stores elements of 2 or 4 bytes, which have no bits beyond.
template <class Element>
__device__ inline void StoreGroup(const uint32_t (&e)[kGroupElements], Element* to) {
  uint4* const vectors = reinterpret_cast<uint4*>(to);
  if constexpr (sizeof(Element) == 2) {
    __stcs(vectors,
           make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16));
  } else {
    __stcs(vectors, make_uint4(e[0], e[1], e[2], e[3]));
    __stcs(vectors + 1, make_uint4(e[4], e[5], e[6], e[7]));
  }
}

}  // namespace dlsim::gpu
