// SPDX-License-Identifier: Apache-2.0
// What bodies of kernels need of a device, with plain code in its place on the host: there, tests
// run the threads of a block one after another.
#pragma once

#include <cstdint>

#include "dlsim/host_device.h"

// Asks for the next loop to be unrolled, so that its arrays lie in registers of a device, or not to
// be, so that its code stays small; DLSIM_RARE keeps what is seldom called out of the way.
#ifdef __CUDACC__
#define DLSIM_UNROLL _Pragma("unroll")
#define DLSIM_NO_UNROLL _Pragma("unroll 1")
#define DLSIM_RARE __noinline__
#else
#define DLSIM_UNROLL
#define DLSIM_NO_UNROLL
#define DLSIM_RARE
#endif

namespace dlsim::gpu {

// The unit of vector accesses.
struct alignas(16) Words {
  uint32_t x, y, z, w;
};

// What is read or written once need not stay in the cache.
DLSIM_HOST_DEVICE inline Words LoadOnce(const Words* from) {
#ifdef __CUDA_ARCH__
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  return {words.x, words.y, words.z, words.w};
#else
  return *from;
#endif
}

DLSIM_HOST_DEVICE inline void StoreOnce(const Words& words, Words* to) {
#ifdef __CUDA_ARCH__
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(words.x, words.y, words.z, words.w));
#else
  *to = words;
#endif
}

// Half of Words.
struct alignas(8) HalfWords {
  uint32_t x, y;
};

DLSIM_HOST_DEVICE inline HalfWords LoadOnce(const HalfWords* from) {
#ifdef __CUDA_ARCH__
  const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
  return {words.x, words.y};
#else
  return *from;
#endif
}

// Returns the place of the highest bit of a number that is not 0.
DLSIM_HOST_DEVICE inline uint32_t HighestBit(uint32_t number) {
#ifdef __CUDA_ARCH__
  return 31u - static_cast<uint32_t>(__clz(static_cast<int>(number)));
#else
  return 31u - static_cast<uint32_t>(__builtin_clz(number));
#endif
}

// Atomic operations, on memory of the block or of the device. The first two return what was there.
DLSIM_HOST_DEVICE inline uint32_t AtomicAdd(uint32_t* to, uint32_t number) {
#ifdef __CUDA_ARCH__
  return atomicAdd(to, number);
#else
  const uint32_t before = *to;
  *to += number;
  return before;
#endif
}

DLSIM_HOST_DEVICE inline uint32_t AtomicTake(uint32_t* from) {
#ifdef __CUDA_ARCH__
  return atomicExch(from, 0u);
#else
  const uint32_t before = *from;
  *from = 0;
  return before;
#endif
}

DLSIM_HOST_DEVICE inline void AtomicAdd(uint64_t* to, uint64_t number) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(number));
#else
  *to += number;
#endif
}

DLSIM_HOST_DEVICE inline void AtomicMax(uint32_t* to, uint32_t number) {
#ifdef __CUDA_ARCH__
  atomicMax(to, number);
#else
  if (*to < number) *to = number;
#endif
}

// Adds a number from each lane of a warp. All of its lanes call this with the same address.
DLSIM_HOST_DEVICE inline void AddOfWarp(uint64_t* to, uint64_t number) {
#ifdef __CUDA_ARCH__
  DLSIM_UNROLL
  for (int step = 16; step > 0; step /= 2) {
    number += __shfl_xor_sync(~0u, static_cast<unsigned long long>(number), step);
  }
  if (threadIdx.x % 32 != 0 || number == 0) return;
#endif
  AtomicAdd(to, number);
}

// Returns whether any lane of the warp says so, or just this one on the host. All lanes call this.
DLSIM_HOST_DEVICE inline bool AnyOfWarp(bool here) {
#ifdef __CUDA_ARCH__
  return __any_sync(~0u, here) != 0;
#else
  return here;
#endif
}

}  // namespace dlsim::gpu
