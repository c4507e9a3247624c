// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding: what a thread does, the same code for devices and, in tests, for the host.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "gpu/base/device_code.h"

namespace dlsim::gpu {

struct EncodeJob {
  Piece tensor = {};  // but for its count, which is
  uint64_t elements = 0;
  float scale = 1.0f;
  RandomStream random = {};
  uint64_t first_index = 0;  // of the first element in the random stream
};

// Formats known at compile time: a shorter form of the rounding of codec.h, which is the part
// that takes most instructions.

// A conversion to an IEEE-like format of 16 bits that is known at compile time.
template <Format kFormat>
struct TunedCodec {
  uint32_t overflow_code;
  uint32_t flush_below;

  DLSIM_HOST_DEVICE constexpr CodecSpec spec() const {
    CodecSpec spec = MakeCodecSpec({kFormat});
    spec.overflow_code = overflow_code;
    spec.flush_below = flush_below;
    spec.saturates = overflow_code == spec.max_code;
    return spec;
  }
};

template <Format kFormat>
constexpr TunedCodec<kFormat> MakeTunedCodec(const Conversion& conversion) {
  static_assert(CodeBits(kFormat) == 16 && HasInfinity(kFormat));
  static_assert(kFormat.denormals == Denormals::kGradual);
  const CodecSpec spec = MakeCodecSpec(conversion);
  return {spec.overflow_code, spec.flush_below};
}

namespace tuned {

using codec::Max;
using codec::Min;

// What rounding to a multiple of a power of two by one float32 addition gives.
struct RoundedSum {
  uint32_t code;  // magnitude; infinity and all that rounds there become one past max_code or more
  float value;    // the magnitude that the code stands for
};

// Rounds to nearest even. Let 2^e be the power of two at or below |x|, or the smallest normal if
// that is larger. A result in this binade is a multiple of 2^(e + d - 23), d being dropped_bits,
// and so is the last bit of the sum |x| + 2^(e + d): the addition rounds as the format does, for
// subnormal results too. The sum's distance from 2^(e + d) in last bits, plus a binade's codes for
// each of those below, is the code. The product is exact: fused or not, the sum is the same.
template <Format kFormat>
DLSIM_HOST_DEVICE inline RoundedSum RoundBySum(uint32_t bits) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  constexpr uint32_t kShift = kSpec.dropped_bits << 23;
  constexpr uint32_t kLimit = ((kSpec.max_code + 1) << kSpec.dropped_bits) + kSpec.rebias;
  constexpr uint32_t kFirst = (kSpec.min_normal_bits >> kSpec.dropped_bits) + kShift;
  const float magnitude = BitCast<float>(bits & ~codec::kSignBit);
  const uint32_t exponent = bits & codec::kInfinityBits;
  const uint32_t power = Min(Max(exponent, kSpec.min_normal_bits), kLimit);
  const float magic = BitCast<float>(power) * BitCast<float>((127u << 23) + kShift);
  const float sum = magnitude + magic;
  const uint32_t offset = BitCast<uint32_t>(sum) + (power >> kSpec.dropped_bits);
  return {offset - power - kFirst, sum - magic};
}

// Whether the direction of rounding keeps a finite value from becoming infinite. May be anything
// for NaN.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr bool StaysFinite(uint32_t bits) {
  if constexpr (kRounding == Rounding::kTowardZero) {
    return (bits & ~codec::kSignBit) < codec::kInfinityBits;
  } else if constexpr (kRounding == Rounding::kTowardPositive) {
    // Negative and not infinite: one comparison, as signed integers.
    return static_cast<int32_t>(bits) <
           static_cast<int32_t>(codec::kSignBit | codec::kInfinityBits);
  } else if constexpr (kRounding == Rounding::kTowardNegative) {
    return bits < codec::kInfinityBits;
  }
  return false;
}

// Rounds the magnitude of `bits`, as RoundMagnitude of codec.h does, but for infinity and NaN:
// infinity becomes something past max_code.
template <Format kFormat, Rounding kRounding>
DLSIM_HOST_DEVICE inline uint32_t RoundMagnitude(uint32_t bits) {
  static_assert(kRounding != Rounding::kStochastic);
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  const uint32_t magnitude = bits & ~codec::kSignBit;
  if constexpr (kSpec.min_normal_bits == 0) {
    // Without subnormals to tell apart the definition is short.
    const codec::Mask negative = codec::MaskOf(magnitude != bits);
    return codec::RoundMagnitude<kRounding>(kSpec, magnitude, negative, 0u);
  } else if constexpr (kRounding == Rounding::kNearestEven) {
    return RoundBySum<kFormat>(bits).code;
  } else if constexpr (kRounding == Rounding::kNearestAway) {
    // The last bit turns a tie into more than half and changes no other result but infinity's.
    return RoundBySum<kFormat>(bits | 1).code;
  } else {
    const RoundedSum nearest = RoundBySum<kFormat>(bits);
    const float value = BitCast<float>(magnitude);
    const bool down = kRounding == Rounding::kTowardZero || StaysFinite<kRounding>(bits);
    uint32_t code = nearest.code;
    if (down && nearest.value > value) --code;
    if (!down && nearest.value < value) ++code;
    return code;
  }
}

// Returns the code of a rounded magnitude: applies the rules of BoundMagnitude and EncodeBits of
// codec.h, but for the one of subnormals, which Flush applies.
template <Rounding kRounding, Format kFormat>
DLSIM_HOST_DEVICE inline uint32_t Finish(const TunedCodec<kFormat>& codec, uint32_t bits,
                                         uint32_t rounded) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  const uint32_t past_max = StaysFinite<kRounding>(bits) ? kSpec.max_code : codec.overflow_code;
  const uint32_t nan = ((bits >> kSpec.dropped_bits) & MagnitudeMask(kFormat)) | kSpec.nan_code;
  const bool is_nan = (bits & ~codec::kSignBit) > codec::kInfinityBits;
  const uint32_t sign = (bits >> kSpec.sign_shift) & (codec::kSignBit >> kSpec.sign_shift);
  return sign | (is_nan ? nan : Min(rounded, past_max));
}

// Returns the code with a subnormal made zero, if the policy is so.
template <Format kFormat>
DLSIM_HOST_DEVICE inline uint32_t Flush(const TunedCodec<kFormat>& codec, uint32_t code) {
  const uint32_t magnitude = code & MagnitudeMask(kFormat);
  return magnitude < codec.flush_below ? code - magnitude : code;
}

// Writes a magnitude as its code followed by 16 bits of fraction, cut. The last bit of a normal
// result is bit d of float32; each binade below the smallest normal shifts one further.
template <Format kFormat>
DLSIM_HOST_DEVICE inline uint32_t FixedPoint(uint32_t bits) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  static_assert(kSpec.dropped_bits <= 16);
  constexpr uint32_t kLimit = ((kSpec.max_code + 1) << kSpec.dropped_bits) + kSpec.rebias;
  constexpr uint32_t kMinExponent = kSpec.min_normal_bits >> 23;
  const uint32_t magnitude = Min(bits & ~codec::kSignBit, kLimit);
  if constexpr (kSpec.min_normal_bits == 0) return magnitude << (16 - kSpec.dropped_bits);
  const uint32_t significand = (magnitude & codec::kMantissaMask) | codec::kImplicitBit;
  const uint32_t exponent = magnitude >> 23;
  const uint32_t power = Max(exponent, kMinExponent);
  const uint32_t shifted = (significand << (16 - kSpec.dropped_bits)) >> Min(power - exponent, 31u);
  return shifted + ((power - kMinExponent) << (39 - kSpec.dropped_bits));
}

}  // namespace tuned

// A conversion to any format, known at run time only but for the rounding mode.
struct AnyCodec {
  CodecSpec values;

  DLSIM_HOST_DEVICE constexpr const CodecSpec& spec() const { return values; }
};

// Calls body(codec, a code) with the codec of a conversion.
template <class Body>
void WithCodec(const Conversion& conversion, const Body& body) {
  const Format& format = conversion.format;
  if (format == kFp16) return body(MakeTunedCodec<kFp16>(conversion), uint16_t());
  if (format == kBf16) return body(MakeTunedCodec<kBf16>(conversion), uint16_t());
  if (format == kCb16) return body(MakeTunedCodec<kCb16>(conversion), uint16_t());
  const AnyCodec codec = {MakeCodecSpec(conversion)};
  if (CodeBytes(format) == sizeof(uint16_t)) return body(codec, uint16_t());
  body(codec, uint32_t());
}

// Encodes groups on the device: equal to Encode of codec.h for every input, which tests prove on
// the host for all 2^32 of them.

// Elements that share a Philox block; their indices in the random stream begin at a multiple of 8.
inline constexpr uint32_t kGroup = static_cast<uint32_t>(kElementsPerPhiloxBlock);

// Returns plane 0 or 1 of the random bits of the group that begins at `index`.
DLSIM_HOST_DEVICE inline PhiloxBlock RandomPlane(const RandomStream& random, uint64_t index,
                                                 uint32_t plane) {
  const uint64_t block = index / kElementsPerPhiloxBlock;
  const PhiloxBlock counter = {
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
  return Philox4x32(counter, random.seed);
}

// Returns the 16 bits of a plane that belong to element i of the group.
DLSIM_HOST_DEVICE inline uint32_t RandomHalf(const PhiloxBlock& plane, uint32_t i) {
  const uint32_t word = plane.word[i / 2];
  return i % 2 == 0 ? word & 0xFFFF : word >> 16;
}

// Encodes a group with stochastic rounding. The high half of the random bits is added to the
// fraction of FixedPoint and carries into the code. What was cut from the fraction and the low half
// are below one unit each: that unit matters only if the sum's fraction is all ones, once in 65536
// times. A group with such an element is left to the definition.
template <Format kFormat>
DLSIM_HOST_DEVICE inline void EncodeStochastic(const TunedCodec<kFormat>& codec,
                                               const RandomStream& random, uint64_t index,
                                               const uint32_t (&bits)[kGroup],
                                               uint32_t (&codes)[kGroup]) {
  constexpr uint32_t kUndecided = 0xFFFF;
  constexpr bool kCuts = MakeCodecSpec({kFormat}).min_normal_bits != 0;
  const PhiloxBlock plane = RandomPlane(random, index, 0);
  uint32_t largest_fraction = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t sum = tuned::FixedPoint<kFormat>(bits[i]) + RandomHalf(plane, i);
    largest_fraction = tuned::Max(largest_fraction, sum << 16);
    codes[i] = tuned::Finish<Rounding::kStochastic>(codec, bits[i], sum >> 16);
  }
  if (kCuts && largest_fraction >> 16 == kUndecided) {
    const PhiloxBlock low_plane = RandomPlane(random, index, 1);
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t word = RandomHalf(plane, i) << 16 | RandomHalf(low_plane, i);
      codes[i] = EncodeWith<Rounding::kStochastic>(codec.spec(), bits[i], word).code;
    }
  }
}

DLSIM_HOST_DEVICE inline void EncodeStochastic(const AnyCodec& codec, const RandomStream& random,
                                               uint64_t index, const uint32_t (&bits)[kGroup],
                                               uint32_t (&codes)[kGroup]) {
  bool needs_low = false;
  for (uint32_t i = 0; i < kGroup; ++i) needs_low |= NeedsLowRandomBits(codec.spec(), bits[i]);
  const PhiloxBlock high = RandomPlane(random, index, 0);
  PhiloxBlock low = {};
  if (needs_low) low = RandomPlane(random, index, 1);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t word = RandomHalf(high, i) << 16 | RandomHalf(low, i);
    codes[i] = EncodeWith<Rounding::kStochastic>(codec.spec(), bits[i], word).code;
  }
}

// Encodes a group, of which the first has `index` in the random stream.
template <Rounding kRounding, Format kFormat>
DLSIM_HOST_DEVICE inline void EncodeGroup(const TunedCodec<kFormat>& codec,
                                          const RandomStream& random, uint64_t index,
                                          const uint32_t (&bits)[kGroup],
                                          uint32_t (&codes)[kGroup]) {
  if constexpr (kRounding == Rounding::kStochastic) {
    EncodeStochastic(codec, random, index, bits, codes);
  } else {
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t rounded = tuned::RoundMagnitude<kFormat, kRounding>(bits[i]);
      codes[i] = tuned::Finish<kRounding>(codec, bits[i], rounded);
    }
  }
  // Asked once for all: the usual policy needs no instruction per element.
  if (codec.flush_below != 0) {
    for (uint32_t i = 0; i < kGroup; ++i) codes[i] = tuned::Flush(codec, codes[i]);
  }
}

template <Rounding kRounding>
DLSIM_HOST_DEVICE inline void EncodeGroup(const AnyCodec& codec, const RandomStream& random,
                                          uint64_t index, const uint32_t (&bits)[kGroup],
                                          uint32_t (&codes)[kGroup]) {
  if constexpr (kRounding == Rounding::kStochastic) {
    EncodeStochastic(codec, random, index, bits, codes);
  } else {
    for (uint32_t i = 0; i < kGroup; ++i) {
      codes[i] = EncodeWith<kRounding>(codec.spec(), bits[i], 0).code;
    }
  }
}

// What a thread does to encode its part of a tensor; the same code for devices and, in tests, for
// the host.

// Returns the part of a thread block.
template <class Code>
DLSIM_HOST_DEVICE inline Piece TileOf(const EncodeJob& job, uint64_t block) {
  Piece tile = job.tensor;
  const uint64_t begin = block * kTileElements, rest = job.elements - begin;
  tile.count = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
  tile.values += begin * DTypeSize(tile.dtype);
  tile.codes = static_cast<Code*>(tile.codes) + begin;
  return tile;
}

// Loads a thread's groups of a whole tile as float32.
template <DType kDType>
DLSIM_HOST_DEVICE inline void LoadGroups(const Piece& tile, uint32_t thread,
                                         uint32_t (&bits)[kThreadGroups][kGroup]) {
  using Element = typename ElementOf<kDType>::Type;
  Element elements[kThreadGroups][kGroup];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    LoadGroup(reinterpret_cast<const Element*>(tile.values) + GroupBegin(thread, i), elements[i]);
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) {
      bits[i][j] = BitCast<uint32_t>(ToFloat<kDType>(elements[i][j]));
    }
  }
}

// A factor of 1 changes nothing that a code can show.
DLSIM_HOST_DEVICE inline void ScaleGroups(float factor, uint32_t (&bits)[kThreadGroups][kGroup]) {
  if (factor == 1.0f) return;
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) bits[i][j] = ScaleBits(bits[i][j], factor);
  }
}

// Encodes a whole tile in vectors.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeTile(const EncodeJob& job, const Codec& codec,
                                         const Piece& tile, uint64_t first_index, uint32_t thread) {
  uint32_t bits[kThreadGroups][kGroup];
  DispatchDType(tile.dtype,
                [&](auto tag) { LoadGroups<decltype(tag)::value>(tile, thread, bits); });
  ScaleGroups(tile.inverse_grad_scale, bits);
  ScaleGroups(job.scale, bits);
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    const uint64_t index = first_index + GroupBegin(thread, i);
    uint32_t codes[kGroup];
    EncodeGroup<kRounding>(codec, job.random, index, bits[i], codes);
    StoreGroup(codes, static_cast<Code*>(tile.codes) + GroupBegin(thread, i));
  }
}

// Encodes any tile, element by element and by the definition.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeElements(const EncodeJob& job, const Codec& codec,
                                             const Piece& tile, uint64_t first_index,
                                             uint32_t thread) {
  DLSIM_NO_UNROLL
  for (uint32_t i = thread; i < tile.count; i += kConvertThreads) {
    const uint32_t bits = BitCast<uint32_t>(LoadValue(tile, i));
    const uint32_t scaled = ScaleBits(bits, job.scale);
    const uint32_t word =
        kRounding == Rounding::kStochastic ? RandomBits(job.random, first_index + i) : 0;
    const uint32_t code = EncodeWith<kRounding>(codec.spec(), scaled, word).code;
    static_cast<Code*>(tile.codes)[i] = static_cast<Code>(code);
  }
}

// Encodes what belongs to a thread of a block.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeOfThread(const EncodeJob& job, const Codec& codec,
                                             uint64_t block, uint32_t thread) {
  const Piece tile = TileOf<Code>(job, block);
  const uint64_t first_index = job.first_index + block * kTileElements;
  if (tile.count == kTileElements && IsAligned(tile.values) && IsAligned(tile.codes)) {
    EncodeTile<kRounding, Code>(job, codec, tile, first_index, thread);
  } else {
    EncodeElements<kRounding, Code>(job, codec, tile, first_index, thread);
  }
}

// Returns the number of blocks of a launch.
inline uint64_t BlocksOf(uint64_t elements) {
  return (elements + kTileElements - 1) / kTileElements;
}

// A store of four values leaves no gap between those of a warp's threads: the memory then takes
// whole lines. (Loads may leave some, as with groups: the cache keeps what the next one needs.)
inline constexpr uint32_t kQuad = 4;
inline constexpr uint32_t kThreadQuads = kTileElements / kConvertThreads / kQuad;

DLSIM_HOST_DEVICE inline void LoadQuad(const uint16_t* from, uint32_t (&codes)[kQuad]) {
  const HalfWords words = LoadOnce(reinterpret_cast<const HalfWords*>(from));
  codes[0] = words.x & 0xFFFF;
  codes[1] = words.x >> 16;
  codes[2] = words.y & 0xFFFF;
  codes[3] = words.y >> 16;
}

DLSIM_HOST_DEVICE inline void LoadQuad(const uint32_t* from, uint32_t (&codes)[kQuad]) {
  const Words words = LoadOnce(reinterpret_cast<const Words*>(from));
  codes[0] = words.x;
  codes[1] = words.y;
  codes[2] = words.z;
  codes[3] = words.w;
}

// Decodes what belongs to a thread of a block: a tile in vectors, or element by element.
template <class Code, class Codec>
DLSIM_HOST_DEVICE inline void DecodeOfThread(const Code* codes, float* values, uint64_t count,
                                             const Codec& codec, uint64_t block, uint32_t thread) {
  const CodecSpec spec = codec.spec();
  const auto decode = [&](uint32_t code) { return dlsim::Decode(spec, code); };
  const uint64_t begin = block * kTileElements;
  codes += begin;
  values += begin;
  const uint64_t rest = count - begin;
  if (rest < kTileElements || !IsAligned(codes) || !IsAligned(values)) {
    const uint32_t length = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
    DLSIM_NO_UNROLL
    for (uint32_t i = thread; i < length; i += kConvertThreads) {
      values[i] = BitCast<float>(decode(codes[i]));
    }
    return;
  }
  uint32_t quads[kThreadQuads][kQuad];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    LoadQuad(codes + (i * kConvertThreads + thread) * kQuad, quads[i]);
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    const uint32_t(&q)[kQuad] = quads[i];
    StoreOnce({decode(q[0]), decode(q[1]), decode(q[2]), decode(q[3])},
              reinterpret_cast<Words*>(values) + i * kConvertThreads + thread);
  }
}

}  // namespace dlsim::gpu
