// SPDX-License-Identifier: Apache-2.0
// What device code is written in: qualifiers, indices, barriers and intrinsics.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vectors.h"

#define __host__
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
// Blocks run one after another: what a block shares may lie where all blocks find it. An alignas
// stands before it, as C++ has it.
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// Set whenever a thread of a block gets its turn.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;

void __syncthreads();
int __syncthreads_count(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_or(int predicate);
[[noreturn]] void __trap();
inline void __threadfence_block() {}
inline void __threadfence() {}
inline void __threadfence_system() {}

namespace dlsim::emulation {

// The block's dynamic shared memory; see gpu/shared_memory.cuh.
void* DynamicSharedMemory();

template <class To, class From>
inline To Bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class T>
constexpr bool IsLoadable() {
  return sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16;
}

// Ends the kernel with an error unless a load or store of this size may use the address.
void CheckAlignment(const void* address, size_t bytes);

template <class T>
inline T Load(const T* from) {
  static_assert(IsLoadable<T>());
  CheckAlignment(from, sizeof(T));
  return *from;
}

template <class T>
inline void Store(T* to, const T& value) {
  static_assert(IsLoadable<T>());
  CheckAlignment(to, sizeof(T));
  *to = value;
}

}  // namespace dlsim::emulation

template <class T>
inline T __ldg(const T* from) {
  return dlsim::emulation::Load(from);
}
template <class T>
inline T __ldcs(const T* from) {
  return dlsim::emulation::Load(from);
}
template <class T>
inline T __ldcg(const T* from) {
  return dlsim::emulation::Load(from);
}
template <class T>
inline void __stcs(T* to, const T& value) {
  dlsim::emulation::Store(to, value);
}
template <class T>
inline void __stcg(T* to, const T& value) {
  dlsim::emulation::Store(to, value);
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
unsigned __brev(unsigned x);
unsigned __byte_perm(unsigned x, unsigned y, unsigned selector);

inline unsigned __float_as_uint(float x) { return dlsim::emulation::Bits<unsigned>(x); }
inline int __float_as_int(float x) { return dlsim::emulation::Bits<int>(x); }
inline float __uint_as_float(unsigned x) { return dlsim::emulation::Bits<float>(x); }
inline float __int_as_float(int x) { return dlsim::emulation::Bits<float>(x); }
inline long long __double_as_longlong(double x) { return dlsim::emulation::Bits<long long>(x); }
inline double __longlong_as_double(long long x) { return dlsim::emulation::Bits<double>(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

#define DLSIM_EMULATED_MIN_MAX(Type)                        \
  inline Type min(Type a, Type b) { return b < a ? b : a; } \
  inline Type max(Type a, Type b) { return a < b ? b : a; }
DLSIM_EMULATED_MIN_MAX(int)
DLSIM_EMULATED_MIN_MAX(unsigned)
DLSIM_EMULATED_MIN_MAX(long)
DLSIM_EMULATED_MIN_MAX(unsigned long)
DLSIM_EMULATED_MIN_MAX(long long)
DLSIM_EMULATED_MIN_MAX(unsigned long long)
#undef DLSIM_EMULATED_MIN_MAX
