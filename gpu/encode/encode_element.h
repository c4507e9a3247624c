// SPDX-License-Identifier: Apache-2.0
// Encodes single elements on the device: equal to Encode of codec.h for every input, which tests
// prove on the host for all 2^32 of them. Formats known at compile time get a shorter form of the
// rounding, the part of codec.inc that takes most instructions.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/philox.h"
#include "gpu/encode/tuned_codec.h"

namespace dlsim::gpu {

// A conversion to any format, known at run time only but for the rounding mode.
struct AnyCodec {
  CodecSpec values;

  DLSIM_HOST_DEVICE constexpr const CodecSpec& spec() const { return values; }
};

// Encodes one element; not for stochastic rounding.
template <Rounding kRounding, Format kFormat>
DLSIM_HOST_DEVICE inline EncodeResult EncodeElement(const TunedCodec<kFormat>& codec,
                                                    uint32_t bits) {
  const uint32_t rounded = tuned::RoundMagnitude<kFormat, kRounding>(bits);
  EncodeResult result = tuned::Finish<kRounding, tuned::Nan::kEncode>(codec, bits, rounded);
  result.code = tuned::Flush(codec, result.code);
  return result;
}

template <Rounding kRounding>
DLSIM_HOST_DEVICE inline EncodeResult EncodeElement(const AnyCodec& codec, uint32_t bits) {
  return EncodeWith<kRounding>(codec.spec(), bits, 0);
}

// Elements that share a Philox block; their indices in the random stream begin at a multiple of 8.
inline constexpr uint32_t kGroup = static_cast<uint32_t>(kElementsPerPhiloxBlock);

// Returns plane 0 or 1 of the random bits of the group that begins at `index`.
DLSIM_HOST_DEVICE inline PhiloxBlock<uint32_t> RandomPlane(const RandomStream& random,
                                                           uint64_t index, uint32_t plane) {
  const uint64_t block = index / kElementsPerPhiloxBlock;
  const PhiloxBlock<uint32_t> counter = {
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
  return scalar::Philox4x32(ScalarLanes(), counter, random.seed);
}

// Returns the 16 bits of a plane that belong to element i of the group.
DLSIM_HOST_DEVICE inline uint32_t RandomHalf(const PhiloxBlock<uint32_t>& plane, uint32_t i) {
  const uint32_t word = plane.word[i / 2];
  return i % 2 == 0 ? word & 0xFFFF : word >> 16;
}

// Encodes a group with stochastic rounding. The high half of the random bits is added to the
// fraction of FixedPoint and carries into the code. What was cut from the fraction and the low half
// are below one unit each: that unit matters only if the sum's fraction is all ones, once in 65536
// times. A group with such an element is left to the definition, as is one with NaN.
template <Format kFormat>
DLSIM_HOST_DEVICE inline void EncodeStochastic(const TunedCodec<kFormat>& codec,
                                               const RandomStream& random, uint64_t index,
                                               const uint32_t (&bits)[kGroup],
                                               EncodeResult (&results)[kGroup]) {
  constexpr uint32_t kUndecided = 0xFFFF;
  constexpr bool kCuts = MakeCodecSpec({kFormat}).min_normal_bits != 0;
  const PhiloxBlock<uint32_t> plane = RandomPlane(random, index, 0);
  uint32_t largest = 0, largest_fraction = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t sum = tuned::FixedPoint<kFormat>(bits[i]) + RandomHalf(plane, i);
    largest = tuned::Max(largest, bits[i] & ~codec::kSignBit);
    largest_fraction = tuned::Max(largest_fraction, sum << 16);
    results[i] =
        tuned::Finish<Rounding::kStochastic, tuned::Nan::kIgnore>(codec, bits[i], sum >> 16);
  }
  const bool undecided = kCuts && largest_fraction >> 16 == kUndecided;
  if (undecided || largest > codec::kInfinityBits) {
    const PhiloxBlock<uint32_t> low_plane = RandomPlane(random, index, 1);
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t word = RandomHalf(plane, i) << 16 | RandomHalf(low_plane, i);
      results[i] = EncodeWith<Rounding::kStochastic>(codec.spec(), bits[i], word);
    }
  }
}

// Returns whether stochastic rounding of an element needs more than the 16 random bits of plane 0.
DLSIM_HOST_DEVICE inline bool NeedsLowPlane(const CodecSpec& spec, uint32_t bits) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const uint32_t below = spec.gradual ? spec.min_normal_bits : spec.min_positive_bits;
  return spec.dropped_bits > 16 || (magnitude != 0 && magnitude < below);
}

DLSIM_HOST_DEVICE inline void EncodeStochastic(const AnyCodec& codec, const RandomStream& random,
                                               uint64_t index, const uint32_t (&bits)[kGroup],
                                               EncodeResult (&results)[kGroup]) {
  bool needs_low = false;
  for (uint32_t i = 0; i < kGroup; ++i) needs_low |= NeedsLowPlane(codec.spec(), bits[i]);
  const PhiloxBlock<uint32_t> high = RandomPlane(random, index, 0);
  PhiloxBlock<uint32_t> low = {};
  if (needs_low) low = RandomPlane(random, index, 1);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t word = RandomHalf(high, i) << 16 | RandomHalf(low, i);
    results[i] = EncodeWith<Rounding::kStochastic>(codec.spec(), bits[i], word);
  }
}

// Encodes a group, of which the first has `index` in the random stream.
template <Rounding kRounding, Format kFormat>
DLSIM_HOST_DEVICE inline void EncodeGroup(const TunedCodec<kFormat>& codec,
                                          const RandomStream& random, uint64_t index,
                                          const uint32_t (&bits)[kGroup],
                                          EncodeResult (&results)[kGroup]) {
  if constexpr (kRounding == Rounding::kStochastic) {
    EncodeStochastic(codec, random, index, bits, results);
  } else {
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t rounded = tuned::RoundMagnitude<kFormat, kRounding>(bits[i]);
      results[i] = tuned::Finish<kRounding, tuned::Nan::kEncode>(codec, bits[i], rounded);
    }
  }
  // Asked once for all: the usual policy needs no instruction per element.
  if (codec.flush_below != 0) {
    for (uint32_t i = 0; i < kGroup; ++i) results[i].code = tuned::Flush(codec, results[i].code);
  }
}

template <Rounding kRounding>
DLSIM_HOST_DEVICE inline void EncodeGroup(const AnyCodec& codec, const RandomStream& random,
                                          uint64_t index, const uint32_t (&bits)[kGroup],
                                          EncodeResult (&results)[kGroup]) {
  if constexpr (kRounding == Rounding::kStochastic) {
    EncodeStochastic(codec, random, index, bits, results);
  } else {
    for (uint32_t i = 0; i < kGroup; ++i) results[i] = EncodeElement<kRounding>(codec, bits[i]);
  }
}

// Returns RandomBits(random, index) without an index into registers.
DLSIM_HOST_DEVICE inline uint32_t RandomWord(const RandomStream& random, uint64_t index) {
  const uint32_t place = static_cast<uint32_t>(index % kElementsPerPhiloxBlock);
  uint32_t bits = 0;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const auto [word] = RandomPlane(random, index, plane);
    const uint32_t first = place < 2 ? word[0] : word[1], last = place < 6 ? word[2] : word[3];
    bits = bits << 16 | ((place < 4 ? first : last) >> (16 * (place % 2)) & 0xFFFF);
  }
  return bits;
}

// Encodes an element with its `index` in the random stream, by itself.
template <Rounding kRounding, class Codec>
DLSIM_HOST_DEVICE inline EncodeResult EncodeSingle(const Codec& codec, const RandomStream& random,
                                                   uint64_t index, uint32_t bits) {
  if constexpr (kRounding == Rounding::kStochastic) {
    return EncodeWith<kRounding>(codec.spec(), bits, RandomWord(random, index));
  } else {
    return EncodeElement<kRounding>(codec, bits);
  }
}

}  // namespace dlsim::gpu
