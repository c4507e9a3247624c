// SPDX-License-Identifier: Apache-2.0
// Groups of eight consecutive elements, which one thread loads and stores with accesses of 16
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/base/device_code.h"

namespace dlsim::gpu {

inline constexpr uint32_t kGroupElements = 8;

// What a thread block converts at once. Each thread takes every kConvertThreads-th group.
inline constexpr uint32_t kConvertThreads = 256;
inline constexpr uint32_t kThreadGroups = 2;
inline constexpr uint32_t kTileElements = kConvertThreads * kThreadGroups * kGroupElements;

// Returns the place of a thread's group number i in a tile.
DLSIM_HOST_DEVICE inline uint32_t GroupBegin(uint32_t thread, uint32_t i) {
  return (i * kConvertThreads + thread) * kGroupElements;
}

// Whether groups can be accessed in vectors.
DLSIM_HOST_DEVICE inline bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Words) == 0;
}

template <class Element>
DLSIM_HOST_DEVICE inline Element ElementOfWords(const uint32_t* words, uint32_t i) {
  if constexpr (sizeof(Element) == 8) {
    return BitCast<Element>(uint64_t{words[2 * i + 1]} << 32 | words[2 * i]);
  } else if constexpr (sizeof(Element) == 4) {
    return BitCast<Element>(words[i]);
  } else {
    return static_cast<Element>(words[i / 2] >> (16 * (i % 2)));
  }
}

template <class Element>
DLSIM_HOST_DEVICE inline void LoadGroup(const Element* from, Element (&elements)[kGroupElements]) {
  constexpr uint32_t kVectors = kGroupElements * sizeof(Element) / sizeof(Words);
  uint32_t words[4 * kVectors];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kVectors; ++i) {
    const Words vector = LoadOnce(reinterpret_cast<const Words*>(from) + i);
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
DLSIM_HOST_DEVICE inline void StoreGroup(const uint32_t (&e)[kGroupElements], Element* to) {
  Words* const vectors = reinterpret_cast<Words*>(to);
  if constexpr (sizeof(Element) == 2) {
    StoreOnce({e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16},
              vectors);
  } else {
    StoreOnce({e[0], e[1], e[2], e[3]}, vectors);
    StoreOnce({e[4], e[5], e[6], e[7]}, vectors + 1);
  }
}

}  // namespace dlsim::gpu
