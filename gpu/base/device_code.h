// SPDX-License-Identifier: Apache-2.0
// What bodies of kernels need of a device, with plain code in its place on the host: there, tests
// run the threads of a block one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dlsim/codec.h"
#include "dlsim/format.h"
#include "dlsim/gpu.h"
#include "dlsim/measure.h"

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

// The unit of work of a thread block.

// Consecutive elements of one tensor in device memory.
struct Piece {
  const std::byte* values = nullptr;  // null = none (a part that is absent)
  void* codes = nullptr;              // if codes are written
  uint32_t count = 0;
  uint32_t tensor = 0;
  float inverse_grad_scale = 1.0f;  // multiplies each value unless it is 1
  DType dtype = DType::kF32;
};

// Returns a piece of no elements at the beginning of the tensor.
inline Piece PieceOf(const DeviceTensor& tensor) {
  Piece piece;
  piece.values = static_cast<const std::byte*>(tensor.values);
  piece.codes = tensor.codes;
  piece.inverse_grad_scale = tensor.grad_scale == 1.0f ? 1.0f : 1.0f / tensor.grad_scale;
  piece.dtype = tensor.dtype;
  return piece;
}

// Elements of a piece as float32: the twin of LoadFloats on the CPU.

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

// Calls body(std::integral_constant) for a type known at run time; all threads of a block take one
// way.
template <class Body>
DLSIM_HOST_DEVICE inline void DispatchDType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(std::integral_constant<DType, DType::kF32>());
    case DType::kF64:
      return body(std::integral_constant<DType, DType::kF64>());
    case DType::kF16:
      return body(std::integral_constant<DType, DType::kF16>());
    case DType::kBF16:
      return body(std::integral_constant<DType, DType::kBF16>());
  }
}

// Returns element i of a piece, unscaled, where speed does not matter.
DLSIM_HOST_DEVICE inline float LoadValue(const Piece& piece, uint32_t i) {
  float value = 0;
  DispatchDType(piece.dtype, [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    using Element = typename ElementOf<kDType>::Type;
    value = ToFloat<kDType>(reinterpret_cast<const Element*>(piece.values)[i]);
  });
  if (piece.inverse_grad_scale == 1.0f) return value;
  return BitCast<float>(ScaleBits(BitCast<uint32_t>(value), piece.inverse_grad_scale));
}

// Groups of eight consecutive elements, which one thread loads and stores with accesses of 16
// bytes.

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
