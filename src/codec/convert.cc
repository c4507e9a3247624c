// SPDX-License-Identifier: Apache-2.0
// Conversion of arrays: to and from 16-bit codes in runs of whole vectors for the formats that are
// tuned, all else by the definition. Compiled for each SIMD target.
#include "dlsim/convert.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "dlsim/error.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"
#include "src/base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/codec/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "src/codec/dispatch.h"
#include "src/codec/encode_loop-inl.h"

// Whether the target has AVX-512, and the instructions between float32 and float16.
#undef DLSIM_AVX3
#undef DLSIM_F16C
#define DLSIM_AVX3 (HWY_TARGET == HWY_AVX3)
#ifdef HWY_DISABLE_F16C
#define DLSIM_F16C 0
#else
#define DLSIM_F16C (DLSIM_AVX3 || HWY_TARGET == HWY_AVX2)
#endif

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// Two vectors of 32-bit lanes as one vector of 16-bit words, and back to memory.

using V = hn::Vec<U32Tag>;
using U16Tag = hn::Repartition<uint16_t, U32Tag>;
using I16Tag = hn::RebindToSigned<U16Tag>;
using Words = hn::Vec<U16Tag>;
inline constexpr U32Tag kU32{};
inline constexpr hn::RebindToSigned<U32Tag> kI32{};
inline constexpr hn::RebindToFloat<U32Tag> kF32{};
inline constexpr U16Tag kU16{};
inline constexpr I16Tag kI16{};

HWY_INLINE V Set(uint32_t bits) { return hn::Set(kU32, bits); }
HWY_INLINE V LoadFloats(const float* from) { return hn::BitCast(kU32, hn::LoadU(kF32, from)); }
HWY_INLINE V MulFloat(V bits, float factor) {
  return hn::BitCast(kU32, hn::Mul(hn::BitCast(kF32, bits), hn::Set(kF32, factor)));
}
HWY_INLINE V Magnitude(V bits) { return hn::And(bits, Set(~codec::kSignBit)); }

// a < b for lanes below 2^31, which are signed integers sooner than unsigned ones.
HWY_INLINE hn::Mask<U32Tag> IsLess(V a, V b) {
  return hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
}

#if DLSIM_AVX3

// The element of LowWords and HighWords that is at each place: in order, first a, then b.
alignas(64) inline constexpr uint16_t kLowWords[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                       22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                       44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
alignas(64) inline constexpr uint16_t kHighWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

HWY_INLINE Words LowWords(V a, V b) {
  return Words{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kLowWords), b.raw)};
}
HWY_INLINE Words HighWords(V a, V b) {
  return Words{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kHighWords), b.raw)};
}
HWY_INLINE Words InOrder(Words words) { return words; }

#else

// Elsewhere the words of a and b alternate until the result is put in order.
HWY_INLINE Words LowWords(V a, V b) {
  return hn::OddEven(hn::BitCast(kU16, hn::ShiftLeft<16>(b)), hn::BitCast(kU16, a));
}
HWY_INLINE Words HighWords(V a, V b) {
  return hn::OddEven(hn::BitCast(kU16, b), hn::BitCast(kU16, hn::ShiftRight<16>(a)));
}
HWY_INLINE Words InOrder(Words words) {
  const hn::Repartition<uint8_t, U16Tag> bytes;
  alignas(16) static constexpr uint8_t kEvenThenOdd[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                           2, 3, 6, 7, 10, 11, 14, 15};
  const auto order = hn::LoadDup128(bytes, kEvenThenOdd);
  const auto blocks = hn::TableLookupBytes(hn::BitCast(bytes, words), order);
#if HWY_TARGET == HWY_AVX2
  return Words{_mm256_permute4x64_epi64(blocks.raw, _MM_SHUFFLE(3, 1, 2, 0))};
#else
  return hn::BitCast(kU16, blocks);
#endif
}

#endif  // DLSIM_AVX3

HWY_INLINE size_t WordCount() { return hn::Lanes(kU16); }

// Elements between two checks for inputs that an encoder leaves to EncodeAny (infinities, NaN,
// far too large values): a run and its codes are still in the first-level cache then. It is tried
// again in smaller pieces, so that few such inputs cost little.
inline constexpr size_t kEncodeRun = 4096;
inline constexpr size_t kEncodeRetry = 128;

// Calls run(stores, begin, count) for runs of whole vectors of `lanes` elements, which fill `out`;
// there is at least one. Vectors are stored where `out` is aligned, but for the first and the last,
// which overlap their neighbors: an element that is converted twice gives the same.
template <class Out, class Run>
HWY_INLINE void ForEachAlignedRun(Stores stores, const Out* out, size_t count, size_t lanes,
                                  const Run& run) {
  run(Stores::kCached, size_t{0}, lanes);
  const size_t misaligned = reinterpret_cast<uintptr_t>(out) / sizeof(*out) % lanes;
  size_t begin = lanes - misaligned;
  const size_t end = count - (count - begin) % lanes;
  for (; begin < end; begin += kEncodeRun) run(stores, begin, HWY_MIN(kEncodeRun, end - begin));
  if (end < count) run(Stores::kCached, count - lanes, lanes);
  if (stores == Stores::kNonTemporal) hwy::FlushStream();
}

HWY_INLINE Words SetWords(uint16_t word) { return hn::Set(kU16, word); }

// Words without their top bits, so that signed and unsigned order agree.
HWY_INLINE Words WithoutSigns(Words words) { return hn::And(words, SetWords(0x7FFF)); }

// Larger of two words each, and whether a word is `limit` or more; for words below 0x8000.
HWY_INLINE Words MaxWords(Words a, Words b) {
  return hn::BitCast(kU16, hn::Max(hn::BitCast(kI16, a), hn::BitCast(kI16, b)));
}
HWY_INLINE bool AnyReaches(Words words, uint16_t limit) {
  const auto below = hn::Set(kI16, static_cast<int16_t>(limit - 1));
  return !hn::AllFalse(kI16, hn::Gt(hn::BitCast(kI16, words), below));
}

// Encodes to a 16-bit format with subnormals by one float32 addition per element.
//
// Let 2^e be the power of two at or below |x|, or the format's smallest normal if that is larger. A
// result in this binade is a multiple of the quantum q = 2^(e - m), m being the format's mantissa
// bits. The sum y = x + magic, magic = +-2^(e + d) (1 + K 2^-23) with the sign of x and d = 23 - m,
// stays in the binade of magic because d is 2 or more, and there q is the last bit of float32. So
// the addition rounds x to a multiple of q, as the format would, and the mantissa of y is K + r
// with r = |x| / q rounded: 2^m to 2^(m + 1) if the result is normal, the code itself if it is
// subnormal. As K is even the parity of ties is that of r. The code is
//   ((e - e_min) << m) + r = low16(y) + (biased exponent of y << m)
// if K = -(biased exponent of y for the smallest normal) << m; carries into the next binade, and
// from the largest finite value to infinity, come out by themselves.

template <Format kFormat, Rounding kRounding>
class GradualEncoder {
 private:
  using F = hn::Vec<decltype(kF32)>;

  // Ties away from zero: truncated to half quanta, then halved, with halves rounded up.
  static constexpr bool kHalves = kRounding == Rounding::kNearestAway;

  static constexpr int kMantissaBits = kFormat.mantissa_bits;
  static constexpr uint32_t kShift = 23 - kMantissaBits - (kHalves ? 1 : 0);  // d
  static constexpr uint32_t kMinExponent = static_cast<uint32_t>(128 - kFormat.bias);
  static constexpr uint32_t kConstant = (0u - ((kMinExponent + kShift) << kMantissaBits)) & 0xFFFF;
  static constexpr uint32_t kMantissaOffset = kHalves ? 2 * kConstant : kConstant;  // K
  static_assert(CodeBits(kFormat) == 16 && kFormat.bias < 127 && kMantissaBits >= 7);
  static_assert(kFormat.denormals == Denormals::kGradual && HasInfinity(kFormat));
  static_assert(kMantissaOffset + (4u << kMantissaBits) <= 0x10000);

 public:
  // AVX-512 has the rounding in the instruction; elsewhere the environment must have it.
  static constexpr int kDirection = DLSIM_AVX3                               ? FE_TONEAREST
                                    : kRounding == Rounding::kNearestEven    ? FE_TONEAREST
                                    : kRounding == Rounding::kTowardPositive ? FE_UPWARD
                                    : kRounding == Rounding::kTowardNegative ? FE_DOWNWARD
                                                                             : FE_TOWARDZERO;

  // High word of y for the first power of two past the largest finite value.
  static constexpr uint16_t kLimit =
      static_cast<uint16_t>((kMinExponent + ((1u << kFormat.exponent_bits) - 2) + kShift) << 7);

  // Encodes two vectors. Results are right unless `largest` reaches kLimit afterwards.
  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    const V y0 = RoundedSum(x0), y1 = RoundedSum(x1);
    const Words high = HighWords(y0, y1);
    largest = MaxWords(largest, WithoutSigns(high));
    // The mantissa of y is below 2^16, so that its high words hold sign and exponent only.
    const Words exponent = hn::ShiftLeft<kMantissaBits - 7>(high);
    const Words magnitude = hn::Add(Significand(LowWords(y0, y1)), exponent);
    return InOrder(hn::OrAnd(magnitude, high, SetWords(0x8000)));
  }

 private:
  static HWY_INLINE F Float(V bits) { return hn::BitCast(kF32, bits); }
  static HWY_INLINE F Magic() {
    return Float(hn::Set(kU32, ((127 + kShift) << 23) | kMantissaOffset));
  }
  static HWY_INLINE F MinNormal() { return Float(hn::Set(kU32, kMinExponent << 23)); }

  static HWY_INLINE Words Significand(Words low) {
    return kHalves ? hn::AverageRound(low, hn::Zero(kU16)) : low;
  }

  // Directed modes are right because y has the sign of x.
  static HWY_INLINE V RoundedSum(V x) {
#if DLSIM_AVX3
    constexpr int kMode = kRounding == Rounding::kNearestEven      ? _MM_FROUND_TO_NEAREST_INT
                          : kRounding == Rounding::kTowardPositive ? _MM_FROUND_TO_POS_INF
                          : kRounding == Rounding::kTowardNegative ? _MM_FROUND_TO_NEG_INF
                                                                   : _MM_FROUND_TO_ZERO;
    constexpr int kLargerMagnitudeWithFirstSign = 0b0011;
    const F exponent = Float(hn::And(x, hn::Set(kU32, 0xFF800000)));
    const auto power =
        _mm512_range_ps(exponent.raw, MinNormal().raw, kLargerMagnitudeWithFirstSign);
    return hn::BitCast(kU32, F{_mm512_fmadd_round_ps(power, Magic().raw, Float(x).raw,
                                                     kMode | _MM_FROUND_NO_EXC)});
#else
    const F exponent = Float(hn::And(x, hn::Set(kU32, codec::kInfinityBits)));
    const V power = hn::BitCast(kU32, hn::Max(exponent, MinNormal()));
    const V with_sign = hn::OrAnd(power, x, hn::Set(kU32, codec::kSignBit));
    // The product is exact, so that it does not matter whether the sum is fused.
    return hn::BitCast(kU32, hn::MulAdd(Float(with_sign), Magic(), Float(x)));
#endif
  }
};

// Encodes to fp16 with the conversion instruction and to bf16 with 16-bit integers. The interface
// is that of GradualEncoder.

#if DLSIM_F16C

// vcvtps2ph with the rounding in the instruction: exact on all inputs, whatever the environment.
template <Rounding kRounding>
class Fp16Encoder {
 public:
  static constexpr int kDirection = FE_TONEAREST;
  // Where ties go away from zero, NaN codes are not final.
  static constexpr uint16_t kLimit = 0x7C01;

  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    if constexpr (kRounding == Rounding::kNearestAway) {
      // The last bit turns a tie into more than half and changes no other result but infinity's.
      const V one = Set(1);
      const Words codes = Combine(Convert(hn::Or(x0, one)), Convert(hn::Or(x1, one)));
      largest = MaxWords(largest, WithoutSigns(codes));
      return codes;
    } else {
      return Combine(Convert(x0), Convert(x1));
    }
  }

 private:
  static constexpr int kMode = kRounding == Rounding::kTowardZero       ? _MM_FROUND_TO_ZERO
                               : kRounding == Rounding::kTowardPositive ? _MM_FROUND_TO_POS_INF
                               : kRounding == Rounding::kTowardNegative ? _MM_FROUND_TO_NEG_INF
                                                                        : _MM_FROUND_TO_NEAREST_INT;
#if DLSIM_AVX3
  static HWY_INLINE __m256i Convert(V x) {
    return _mm512_cvtps_ph(_mm512_castsi512_ps(x.raw), kMode | _MM_FROUND_NO_EXC);
  }
  static HWY_INLINE Words Combine(__m256i a, __m256i b) {
    return Words{_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)};
  }
#else
  static HWY_INLINE __m128i Convert(V x) {
    return _mm256_cvtps_ph(_mm256_castsi256_ps(x.raw), kMode);
  }
  static HWY_INLINE Words Combine(__m128i a, __m128i b) {
    return Words{_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1)};
  }
#endif
};

#else

template <Rounding kRounding>
using Fp16Encoder = GradualEncoder<kFp16, kRounding>;

#endif  // DLSIM_F16C

// bf16 is the upper half of float32, rounded: `high` plus one where `low` carries into it.
template <Rounding kRounding>
class Bf16Encoder {
 public:
  static constexpr int kDirection = FE_TONEAREST;
  // NaN must become quiet; its payload may be in `low` alone.
  static constexpr uint16_t kLimit = 0x7F80;

  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    const Words high = HighWords(x0, x1);
    largest = MaxWords(largest, WithoutSigns(high));
    if constexpr (kRounding == Rounding::kTowardZero) return InOrder(high);
    return InOrder(hn::Add(high, RoundUp(high, LowWords(x0, x1))));
  }

 private:
  // Returns 1 where low + addend + 1 reaches 2^16: bit 15 of the average, rounded up.
  static HWY_INLINE Words Carry(Words low, Words addend) {
    return hn::ShiftRight<15>(hn::AverageRound(low, addend));
  }

  static HWY_INLINE Words RoundUp(Words high, Words low) {
    if constexpr (kRounding == Rounding::kNearestEven) {
      return Carry(low, hn::OrAnd(SetWords(0x7FFE), high, SetWords(1)));
    } else if constexpr (kRounding == Rounding::kNearestAway) {
      return hn::ShiftRight<15>(low);
    } else {
      const Words negative = hn::BitCast(kU16, hn::ShiftRight<15>(hn::BitCast(kI16, high)));
      const Words inexact = Carry(low, SetWords(0xFFFE));
      return kRounding == Rounding::kTowardPositive ? hn::AndNot(negative, inexact)
                                                    : hn::And(negative, inexact);
    }
  }
};

// Stochastic rounding to the IEEE-like formats of 16 bits, random bits included.

// Vectors that are encoded together: those that one vector of Philox blocks serves.
inline constexpr size_t kGroupVectors = 4;

#if HWY_TARGET <= HWY_AVX3
// For each vector of a group and each of its lanes, where PhiloxHalves has its random bits.
struct RandomIndices {
  alignas(64) uint32_t of[kGroupVectors][16];
};
inline constexpr RandomIndices kRandomIndices = [] {
  RandomIndices indices = {};
  for (uint32_t element = 0; element < 64; ++element) {
    const uint32_t block = element / 8, half = element % 8;
    indices.of[element / 16][element % 16] = 4 * block + half % 4 + (half < 4 ? 0 : 32);
  }
  return indices;
}();
#endif

// Encodes with stochastic rounding in fixed point. A magnitude is written as its code followed by
// 16 bits of fraction: a normal result drops d <= 16 bits of float32, so that its 31 bits move left
// by 16 - d; a subnormal one counts multiples of 2^-16 of the smallest subnormal, cut to an
// integer. Adding the high half of the random bits then carries into the code where the definition,
// which adds the top d bits, does:
// * d <= 16: the fraction has 16 - d zeros at its end, so that the bits added there cannot carry.
// * d > 16: what was cut and the low half of the random bits are below one unit each and add at
//   most one. That one carries into the code only if the sum's fraction is all ones; such lanes,
//   one in 65536, are left to the scalar reference.
template <bool kHasSubnormals>
class StochasticEncoder {
 public:
  explicit HWY_INLINE StochasticEncoder(const ArrayConversion& how)
      : how_(how), spec_(MakeCodecSpec(how.conversion)) {
    limit_bits_ = (spec_.overflow_code << spec_.dropped_bits) + spec_.rebias;
    if constexpr (kHasSubnormals) {
      const Format& f = how.conversion.format;
      const int log2_units = 16 + f.bias + f.mantissa_bits - 1;
      units_ = std::bit_cast<float>(static_cast<uint32_t>(127 + log2_units) << 23);
    }
  }

  // Encodes the values of kGroupVectors vectors; `index` is that of the first in the stream.
  HWY_INLINE void EncodeGroup(const PhiloxHalves& random, uint64_t index,
                              const float* HWY_RESTRICT values,
                              uint16_t* HWY_RESTRICT codes) const {
    const size_t lanes = hn::Lanes(kU32);
    V bits[kGroupVectors];
    for (size_t i = 0; i < kGroupVectors; ++i) bits[i] = LoadFloats(values + i * lanes);
    if (how_.scale != 1.0f) {  // processors take long to multiply subnormal numbers
      for (V& of_vector : bits) of_vector = MulFloat(of_vector, how_.scale);
    }
    V sums[kGroupVectors] = {
        hn::Add(FixedPoint(bits[0]), RandomOf<0>(random)),
        hn::Add(FixedPoint(bits[1]), RandomOf<1>(random)),
        hn::Add(FixedPoint(bits[2]), RandomOf<2>(random)),
        hn::Add(FixedPoint(bits[3]), RandomOf<3>(random)),
    };
    if (HWY_UNLIKELY(AnyNan(bits))) {
      for (size_t i = 0; i < kGroupVectors; ++i) sums[i] = WithNans(bits[i], sums[i]);
    }
    if (spec_.flush_below != 0) {
      for (V& sum : sums) sum = WithoutSubnormals(sum);
    }
    for (size_t i = 0; i < kGroupVectors; i += 2) {
      const auto low = Halves(Signed(sums[i], bits[i]));
      const auto high = Halves(Signed(sums[i + 1], bits[i + 1]));
      hn::StoreU(hn::ConcatOdd(U16Tag(), high, low), U16Tag(), codes + i * lanes);
    }
    if (kHasSubnormals && HWY_UNLIKELY(AnyUndecided(sums))) {
      uint32_t lane_sums[kGroupVectors * hn::MaxLanes(U32Tag())];
      for (size_t i = 0; i < kGroupVectors; ++i) hn::StoreU(sums[i], kU32, lane_sums + i * lanes);
      EncodeUndecided(index, values, lane_sums, codes);
    }
  }

 private:
  // With bias 127 the code is the upper half of float32, sign included.
  static constexpr bool kSumsHaveSigns = !kHasSubnormals;

  // The fraction out of which what the sum leaves out may carry.
  static constexpr uint16_t kUndecided = 0xFFFF;

  static HWY_INLINE hn::Vec<U16Tag> Halves(V v) { return hn::BitCast(U16Tag(), v); }

  // For sums without sign, whose upper halves are never all ones.
  static HWY_INLINE bool AnyUndecided(const V* sums) {
    const U16Tag u16;
    const auto largest = hn::Max(hn::Max(Halves(sums[0]), Halves(sums[1])),
                                 hn::Max(Halves(sums[2]), Halves(sums[3])));
    return !hn::AllFalse(u16, hn::Eq(largest, hn::Set(u16, kUndecided)));
  }

  static HWY_INLINE bool AnyNan(const V* bits) {
#if HWY_TARGET <= HWY_AVX3
    const auto nan = [&](size_t i) HWY_ATTR {
      return _mm512_cmp_ps_mask(_mm512_castsi512_ps(bits[i].raw),
                                _mm512_castsi512_ps(bits[i + 1].raw), _CMP_UNORD_Q);
    };
    return _mm512_kortestz(nan(0), nan(2)) == 0;
#else
    const auto magnitude = [&](size_t i) HWY_ATTR { return Magnitude(bits[i]); };
    const V largest =
        hn::Max(hn::Max(magnitude(0), magnitude(1)), hn::Max(magnitude(2), magnitude(3)));
    return !hn::AllFalse(kU32, IsLess(Set(codec::kInfinityBits), largest));
#endif
  }

  // Infinity and whatever rounds past it become the limit, which has no fraction.
  HWY_INLINE V ClampedMagnitude(V bits) const {
#if HWY_TARGET <= HWY_AVX3
    constexpr int kMinMagnitudeWithoutSign = 0xA;
    const auto limit = _mm512_castsi512_ps(Set(limit_bits_).raw);
    return V{_mm512_castps_si512(
        _mm512_range_ps(_mm512_castsi512_ps(bits.raw), limit, kMinMagnitudeWithoutSign))};
#else
    return hn::Min(Magnitude(bits), Set(limit_bits_));
#endif
  }

  static HWY_INLINE V TruncateToInteger(V bits) {
    const auto x = hn::BitCast(kF32, bits);
#if HWY_TARGET <= HWY_AVX3
    return V{_mm512_cvttps_epi32(x.raw)};
#elif HWY_TARGET == HWY_AVX2
    return V{_mm256_cvttps_epi32(x.raw)};
#else
    return hn::BitCast(kU32, hn::ConvertTo(kI32, x));
#endif
  }

  // Returns float32 bits as a code followed by 16 bits of fraction. NaN may become anything.
  HWY_INLINE V FixedPoint(V bits) const {
    if constexpr (kSumsHaveSigns) {
      // Infinity has no fraction and overflow ends there.
      return spec_.saturates ? WithSign(ClampedMagnitude(bits), bits) : bits;
    } else {
      const V magnitude = ClampedMagnitude(bits);
      const V rebiased = hn::Sub(magnitude, Set(spec_.rebias));
      const V normal = hn::ShiftLeftSame(rebiased, static_cast<int>(16 - spec_.dropped_bits));
      const V subnormal = TruncateToInteger(MulFloat(magnitude, units_));
      const auto is_subnormal = IsLess(magnitude, Set(spec_.min_normal_bits));
      return hn::IfThenElse(is_subnormal, subnormal, normal);
    }
  }

  // Returns the high halves of the random bits of the group's vector number kVector.
  template <size_t kVector>
  static HWY_INLINE V RandomOf(const PhiloxHalves& random) {
#if HWY_TARGET <= HWY_AVX3
    return V{_mm512_maskz_permutex2var_epi16(0x55555555, random.first.raw,
                                             _mm512_load_si512(kRandomIndices.of[kVector]),
                                             random.last.raw)};
#else
    // The elements of a block are in `first` and `last`; a vector takes one block or half of one.
    const U64Tag u64;
    const auto blocks = kVector < 2 ? hn::ConcatLowerLower(u64, random.last, random.first)
                                    : hn::ConcatUpperUpper(u64, random.last, random.first);
    const U32Tag u32;
    const auto halves = hn::BitCast(U16Tag(), blocks), zero = hn::Zero(U16Tag());
    return kVector % 2 == 0 ? hn::ZipLower(u32, halves, zero) : hn::ZipUpper(u32, halves, zero);
#endif
  }

  HWY_INLINE V WithNans(V bits, V sum) const {
    const V payload = hn::ShiftRightSame(hn::And(bits, Set(codec::kMantissaMask)),
                                         static_cast<int>(spec_.dropped_bits));
    const V code = hn::ShiftLeft<16>(hn::Or(Set(spec_.nan_code), payload));
    const auto nan = IsLess(Set(codec::kInfinityBits), Magnitude(bits));
    return hn::IfThenElse(nan, kSumsHaveSigns ? WithSign(code, bits) : code, sum);
  }

  HWY_INLINE V WithoutSubnormals(V sum) const {
    const auto below = IsLess(Magnitude(sum), Set(spec_.flush_below << 16));
    return hn::IfThenElse(below, hn::And(sum, Set(codec::kSignBit)), sum);
  }

  static HWY_INLINE V WithSign(V magnitude, V bits) {
    return hn::OrAnd(magnitude, bits, hn::Set(U32Tag(), codec::kSignBit));
  }
  static HWY_INLINE V Signed(V sum, V bits) { return kSumsHaveSigns ? sum : WithSign(sum, bits); }

  // Encodes the undecided among a group's elements once more, with all 32 random bits.
  HWY_NOINLINE void EncodeUndecided(uint64_t index, const float* values, const uint32_t* sums,
                                    uint16_t* codes) const {
    for (size_t i = 0; i < kGroupVectors * hn::Lanes(kU32); ++i) {
      if ((sums[i] & 0xFFFF) != kUndecided) continue;
      const uint32_t bits = std::bit_cast<uint32_t>(values[i] * how_.scale);
      const uint32_t random = RandomBits(how_.random, index + i);
      codes[i] = static_cast<uint16_t>(EncodeWith<Rounding::kStochastic>(spec_, bits, random).code);
    }
  }

  ArrayConversion how_;
  CodecSpec spec_;
  uint32_t limit_bits_;  // float32 bits of what an infinite input becomes
  float units_ = 0.0f;   // 2^16 / the smallest subnormal, which is 2^(1 - bias - mantissa_bits)
};

// Encodes elements whose Philox counters have one second word; `first` is the index of values[0].
template <bool kHasSubnormals>
HWY_INLINE void EncodeStochasticRun(const ArrayConversion& how, uint64_t first,
                                    const float* HWY_RESTRICT values, size_t count,
                                    uint16_t* HWY_RESTRICT codes) {
  const StochasticEncoder<kHasSubnormals> encoder(how);
  const uint64_t block = first / kElementsPerPhiloxBlock;
  const PhiloxPlane plane(how.random, static_cast<uint32_t>(block >> 32), 0);
  auto blocks = hn::Iota(U64Tag(), static_cast<uint32_t>(block));
  const size_t size = PhiloxElements(), group = size / kPhiloxVectors;
  constexpr size_t kMaxSize = kPhiloxVectors * kGroupVectors * hn::MaxLanes(U32Tag());
  float rest[kMaxSize];
  uint16_t rest_codes[kMaxSize];
  for (size_t i = 0; i < count; i += size) {
    const float* from = values + i;
    uint16_t* to = codes + i;
    if (HWY_UNLIKELY(count - i < size)) {
      std::fill(std::copy(from, values + count, rest), rest + size, 0.0f);
      from = rest, to = rest_codes;
    }
    PhiloxHalves random[kPhiloxVectors];
    plane.Fill(blocks, random);
    for (size_t j = 0; j < kPhiloxVectors; ++j) {
      // Hardware prefetchers lose track between blocks, and virtual machines may lack them.
      constexpr size_t kLine = 64 / sizeof(float), kAhead = 2048 / sizeof(float);
      for (size_t line = 0; line < group; line += kLine) {
        hwy::Prefetch(from + j * group + line + kAhead);
      }
      encoder.EncodeGroup(random[j], first + i + j * group, from + j * group, to + j * group);
    }
    if (HWY_UNLIKELY(to == rest_codes)) std::copy_n(rest_codes, count - i, codes + i);
  }
}

// Encodes with stochastic rounding to a format for which HasFastStochastic.
HWY_INLINE void EncodeStochastic(const ArrayConversion& how, const float* HWY_RESTRICT values,
                                 size_t count, uint16_t* HWY_RESTRICT codes) {
  const bool has_subnormals = MakeCodecSpec(how.conversion).min_normal_bits != 0;
  for (size_t begin = 0; begin < count;) {
    const uint64_t first = how.first_index + begin;
    const size_t length = HWY_MIN(count - begin, ElementsBeforeCarry(first));
    if (has_subnormals) {
      EncodeStochasticRun<true>(how, first, values + begin, length, codes + begin);
    } else {
      EncodeStochasticRun<false>(how, first, values + begin, length, codes + begin);
    }
    begin += length;
  }
}

// Returns whether EncodeStochastic knows the format: fp16, bf16, cb16 and those laid out alike.
HWY_INLINE bool HasFastStochastic(const Format& format) {
  return CodeBits(format) == 16 && HasInfinity(format) && format.denormals == Denormals::kGradual &&
         format.bias == (1 << (format.exponent_bits - 1)) - 1;
}

#endif  // HWY_TARGET != HWY_SCALAR

// Encodes blocks: the tuned formats with 16-bit codes in runs of whole vectors, all else by
// the definition.

// Encodes to any format, with any options.
template <Rounding kRounding, class Code>
HWY_NOINLINE void EncodeAny(const ArrayConversion& how, const float* HWY_RESTRICT values,
                            size_t count, Code* HWY_RESTRICT codes) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const float scale = how.scale;
  ForEachRun<kRounding>(
      spec, scale, how.random, how.first_index, values, count,
      [&](size_t begin, size_t end, const uint32_t* random) HWY_ATTR {
        for (size_t i = begin; i < end; ++i) {
          const uint32_t bits = std::bit_cast<uint32_t>(values[i] * scale);
          const uint32_t word = kRounding == Rounding::kStochastic ? random[i - begin] : 0;
          codes[i] = static_cast<Code>(EncodeWith<kRounding>(spec, bits, word).code);
        }
      });
}

#if HWY_TARGET != HWY_SCALAR

template <Rounding kRounding, class Encoder>
class TunedEncoding {
 public:
  // Encodes without the options for subnormals and overflow, see BoundCodes.
  static void Encode(Stores stores, const ArrayConversion& how, const float* values, size_t count,
                     uint16_t* codes) {
    if constexpr (Encoder::kDirection != FE_TONEAREST) {
      if (how.scale != 1.0f) return EncodeScaled(how, values, count, codes);
      const RoundingDirection direction(Encoder::kDirection);
      EncodeRuns<false>(stores, how, values, count, codes);
    } else if (how.scale == 1.0f) {
      EncodeRuns<false>(stores, how, values, count, codes);
    } else {
      EncodeRuns<true>(stores, how, values, count, codes);
    }
  }

 private:
  // Encodes a whole number of vectors.
  template <bool kScaled, Stores kStores>
  static HWY_NOINLINE void EncodeRun(const ArrayConversion& how, const float* HWY_RESTRICT values,
                                     size_t count, uint16_t* HWY_RESTRICT codes) {
    constexpr Encoder kEncoder;
    const size_t words = WordCount();
    Words largest = SetWords(0);
    for (size_t i = 0; i < count; i += words) {
      V x0 = LoadFloats(values + i), x1 = LoadFloats(values + i + words / 2);
      if constexpr (kScaled) {
        x0 = MulFloat(x0, how.scale);
        x1 = MulFloat(x1, how.scale);
      }
      const Words result = kEncoder(x0, x1, largest);
      if constexpr (kStores == Stores::kNonTemporal) {
        hwy::Prefetch(values + i + kPrefetchDistance);
        hwy::Prefetch(values + i + kPrefetchDistance + words / 2);
        hn::Stream(result, kU16, codes + i);
      } else {
        hn::StoreU(result, kU16, codes + i);
      }
    }
    if (HWY_LIKELY(!AnyReaches(largest, Encoder::kLimit))) return;
    if (count <= kEncodeRetry) return EncodeAny<kRounding>(how, values, count, codes);
    for (size_t i = 0; i < count; i += kEncodeRetry) {
      EncodeRun<kScaled, kStores>(how, values + i, HWY_MIN(kEncodeRetry, count - i), codes + i);
    }
  }

  template <bool kScaled>
  static void EncodeRuns(Stores stores, const ArrayConversion& how, const float* values,
                         size_t count, uint16_t* codes) {
    ForEachAlignedRun(
        stores, codes, count, WordCount(), [&](Stores of_run, size_t begin, size_t length) {
          const auto run = of_run == Stores::kNonTemporal ? EncodeRun<kScaled, Stores::kNonTemporal>
                                                          : EncodeRun<kScaled, Stores::kCached>;
          run(how, values + begin, length, codes + begin);
        });
  }

  // Scales to nearest before the direction of rounding is set.
  static HWY_NOINLINE void EncodeScaled(const ArrayConversion& how, const float* values,
                                        size_t count, uint16_t* codes) {
    float scaled[kEncodeRun];
    ArrayConversion unscaled = how;
    unscaled.scale = 1.0f;
    for (size_t begin = 0; begin < count; begin += kEncodeRun) {
      const size_t length = HWY_MIN(kEncodeRun, count - begin);
      for (size_t i = 0; i < length; ++i) scaled[i] = values[begin + i] * how.scale;
      Encode(Stores::kCached, unscaled, scaled, length, codes + begin);
    }
  }
};

// Applies saturation and flushing to codes of a 16-bit format with infinity.
HWY_NOINLINE void BoundCodes(const CodecSpec& spec, size_t count, uint16_t* HWY_RESTRICT codes) {
  const size_t words = WordCount();
  // No magnitude equals 0xFFFF or is below 0.
  const auto infinity =
      SetWords(static_cast<uint16_t>(spec.saturates ? spec.max_code + 1 : 0xFFFF));
  const auto flush_below = hn::Set(kI16, static_cast<int16_t>(spec.flush_below));
  for (size_t i = 0; i < count; i += words) {
    const size_t begin = HWY_MIN(i, count - words);
    const Words loaded = hn::LoadU(kU16, codes + begin);
    const Words magnitude = WithoutSigns(loaded);
    const auto flushed = hn::Lt(hn::BitCast(kI16, magnitude), flush_below);
    const Words sign = hn::AndNot(SetWords(0x7FFF), loaded);
    // A mask is -1: one code less.
    const Words bounded = hn::Add(loaded, hn::VecFromMask(kU16, hn::Eq(magnitude, infinity)));
    const Words result = hn::IfThenElse(hn::RebindMask(kU16, flushed), sign, bounded);
    hn::StoreU(result, kU16, codes + begin);
  }
}

// Encodes to a tuned format.
template <Rounding kRounding, class Encoder>
void EncodeTuned(Stores stores, const ArrayConversion& how, const float* values, size_t count,
                 uint16_t* codes) {
  using Encoding = TunedEncoding<kRounding, Encoder>;
  if (count < WordCount()) return EncodeAny<kRounding>(how, values, count, codes);
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  if (!spec.saturates && spec.flush_below == 0) {
    return Encoding::Encode(stores, how, values, count, codes);
  }
  for (size_t begin = 0; begin < count; begin += kEncodeRun) {
    // The last chunk may overlap the one before it.
    const size_t length = HWY_MIN(kEncodeRun, count);
    const size_t at = HWY_MIN(begin, count - length);
    Encoding::Encode(Stores::kCached, how, values + at, length, codes + at);
    BoundCodes(spec, length, codes + at);
  }
}

// Encodes if there is a tuned kernel; returns whether there is.
template <Rounding kRounding>
bool EncodeIfTuned(Stores stores, const ArrayConversion& how, const float* values, size_t count,
                   uint16_t* codes) {
  const Format& format = how.conversion.format;
  if constexpr (kRounding == Rounding::kStochastic) {
    if (!HasFastStochastic(format)) return false;
    EncodeStochastic(how, values, count, codes);
  } else if (format == kFp16) {
    EncodeTuned<kRounding, Fp16Encoder<kRounding>>(stores, how, values, count, codes);
  } else if (format == kBf16) {
    EncodeTuned<kRounding, Bf16Encoder<kRounding>>(stores, how, values, count, codes);
  } else if (format == kCb16) {
    EncodeTuned<kRounding, GradualEncoder<kCb16, kRounding>>(stores, how, values, count, codes);
  } else {
    return false;
  }
  return true;
}

#else

template <Rounding kRounding>
bool EncodeIfTuned(Stores, const ArrayConversion&, const float*, size_t, uint16_t*) {
  return false;
}

#endif  // HWY_TARGET != HWY_SCALAR

void EncodeBlock16(Stores stores, const ArrayConversion& how, const float* values, size_t count,
                   uint16_t* codes) {
  WithRounding(how.conversion.rounding, [&](auto rounding) {
    constexpr Rounding kRounding = decltype(rounding)::value;
    if (EncodeIfTuned<kRounding>(stores, how, values, count, codes)) return;
    EncodeAny<kRounding>(how, values, count, codes);
  });
}

void EncodeBlock32(const ArrayConversion& how, const float* values, size_t count, uint32_t* codes) {
  WithRounding(how.conversion.rounding, [&](auto rounding) {
    EncodeAny<decltype(rounding)::value>(how, values, count, codes);
  });
}

// Decodes blocks: the tuned formats with 16-bit codes in runs of whole vectors, all else by
// the definition.

// Decodes any format.
template <class Code>
HWY_NOINLINE void DecodeAny(const Format& format, const Code* HWY_RESTRICT codes, size_t count,
                            float* HWY_RESTRICT values) {
  const CodecSpec spec = MakeCodecSpec({format});
  for (size_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(Decode(spec, codes[i]));
}

#if HWY_TARGET != HWY_SCALAR

// A 16-bit format with subnormals. With ones above the code's exponent, g is the magnitude times a
// power of two (1 / kScale) if the code is normal, infinite or NaN, the all-ones exponents being
// the same. If it is subnormal, g is the mean of the magnitude and the smallest normal N, so
// scaled. So
//   magnitude = kScale * min(g, 2 g - N / kScale)
// in all cases: exactly, with NaN made quiet, and without subnormal operands, which some machines
// are slow with.
template <Format kFormat>
class GradualDecoder {
  using F = hn::Vec<decltype(kF32)>;
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  static constexpr uint32_t kMagnitude = MagnitudeMask(kFormat) << kShift;
  static constexpr uint32_t kOnes = codec::kInfinityBits & ~kMagnitude;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kFormat.bias) << 23;
  static constexpr uint32_t kScale = kMinNormal + (126u << 23) - kOnes;
  static_assert(CodeBits(kFormat) == 16 && kFormat.bias < 127);
  static_assert(kFormat.denormals == Denormals::kGradual && HasInfinity(kFormat));

 public:
  // Decodes a vector.
  HWY_INLINE V operator()(const uint16_t* codes) const {
    const hn::Rebind<int16_t, U32Tag> i16;
    const auto code = hn::LoadU(i16, reinterpret_cast<const int16_t*>(codes));
    // The sign fills the bits above those of the code.
    const V bits = hn::BitCast(kU32, hn::ShiftLeft<kShift>(hn::PromoteTo(kI32, code)));
    const F g = Float(hn::OrAnd(Set(kOnes), bits, Set(kMagnitude)));
    const F subnormal = hn::MulSub(g, Float(Set(0x40000000)), Float(Set(kOnes + (1u << 23))));
    // As integers, where NaN is large and the float's own order holds otherwise.
    const V smaller = hn::Min(Bits(g), Bits(subnormal));
    const V value = Bits(hn::Mul(Float(smaller), Float(Set(kScale))));
    return hn::OrAnd(value, bits, Set(codec::kSignBit));
  }

 private:
  static HWY_INLINE V Bits(F value) { return hn::BitCast(kU32, value); }
  static HWY_INLINE F Float(V bits) { return hn::BitCast(kF32, bits); }
};

#if DLSIM_F16C

class Fp16Decoder {
 public:
  HWY_INLINE V operator()(const uint16_t* codes) const {
#if DLSIM_AVX3
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    return V{_mm512_castps_si512(_mm512_cvtph_ps(half))};
#else
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return V{_mm256_castps_si256(_mm256_cvtph_ps(half))};
#endif
  }
};

#else

using Fp16Decoder = GradualDecoder<kFp16>;

#endif  // DLSIM_F16C

class Bf16Decoder {
 public:
  HWY_INLINE V operator()(const uint16_t* codes) const {
    const hn::Rebind<uint16_t, U32Tag> u16;
    const V bits = hn::ShiftLeft<16>(hn::PromoteTo(kU32, hn::LoadU(u16, codes)));
    const auto nan = hn::RebindMask(kU32, hn::IsNaN(hn::BitCast(kF32, bits)));
    return hn::Or(bits, hn::IfThenElseZero(nan, Set(0x00400000)));
  }
};

template <class Decoder>
class TunedDecoding {
 public:
  static void Decode(Stores stores, const uint16_t* codes, size_t count, float* values) {
    ForEachAlignedRun(
        stores, values, count, hn::Lanes(kU32), [&](Stores of_run, size_t begin, size_t length) {
          const auto run = of_run == Stores::kNonTemporal ? DecodeRun<Stores::kNonTemporal>
                                                          : DecodeRun<Stores::kCached>;
          run(codes + begin, length, values + begin);
        });
  }

 private:
  // Decodes a whole number of vectors.
  template <Stores kStores>
  static HWY_NOINLINE void DecodeRun(const uint16_t* HWY_RESTRICT codes, size_t count,
                                     float* HWY_RESTRICT values) {
    constexpr Decoder kDecoder;
    const size_t lanes = hn::Lanes(kU32);
    for (size_t i = 0; i < count; i += lanes) {
      const auto value = hn::BitCast(kF32, kDecoder(codes + i));
      if constexpr (kStores == Stores::kNonTemporal) {
        hwy::Prefetch(codes + i + kPrefetchDistance);
        hn::Stream(value, kF32, values + i);
      } else {
        hn::StoreU(value, kF32, values + i);
      }
    }
  }
};

// Decodes if there is a tuned kernel for so many; returns whether there is.
bool DecodeIfTuned(Stores stores, const Format& format, const uint16_t* codes, size_t count,
                   float* values) {
  if (count < hn::Lanes(kU32)) return false;
  if (format == kFp16) {
    TunedDecoding<Fp16Decoder>::Decode(stores, codes, count, values);
  } else if (format == kBf16) {
    TunedDecoding<Bf16Decoder>::Decode(stores, codes, count, values);
  } else if (format == kCb16) {
    TunedDecoding<GradualDecoder<kCb16>>::Decode(stores, codes, count, values);
  } else {
    return false;
  }
  return true;
}

#else

bool DecodeIfTuned(Stores, const Format&, const uint16_t*, size_t, float*) { return false; }

#endif  // HWY_TARGET != HWY_SCALAR

void DecodeBlock16(Stores stores, const Format& format, const uint16_t* codes, size_t count,
                   float* values) {
  if (DecodeIfTuned(stores, format, codes, count, values)) return;
  DecodeAny(format, codes, count, values);
}

void DecodeBlock32(const Format& format, const uint32_t* codes, size_t count, float* values) {
  DecodeAny(format, codes, count, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(EncodeBlock16);
DLSIM_EXPORT(EncodeBlock32);
DLSIM_EXPORT(DecodeBlock16);
DLSIM_EXPORT(DecodeBlock32);

// Calls kernel(begin, count) for the blocks of an array; `output` is for messages.
template <class Code, class Kernel>
void ConvertInBlocks(const char* output, const Format& format, size_t inputs, size_t outputs,
                     const Kernel& kernel) {
  if (inputs != outputs) {
    throw UsageError(output, "wrong length", std::to_string(inputs), std::to_string(outputs));
  }
  DLSIM_CHECK(CodeBits(format) <= static_cast<int>(8 * sizeof(Code)));
  ParallelForBlocks(inputs, kernel);
}

constexpr const char* kEncoded = "EncodeArray: codes";
constexpr const char* kDecoded = "DecodeArray: values";

// The conversion of what begins at an element, the first of a block.
ArrayConversion From(size_t begin, ArrayConversion how) {
  DLSIM_CHECK(how.first_index % kElementsPerPhiloxBlock == 0);
  how.first_index += begin;
  return how;
}

// An output that fits into the last-level cache may be read from there next. The cache is not asked
// about for small outputs, which fit anyway.
Stores StoresFor(size_t output_bytes) {
  constexpr size_t kSmall = size_t{1} << 20;
  const bool fits = output_bytes <= kSmall || output_bytes <= LastLevelCacheBytes();
  return fits ? Stores::kCached : Stores::kNonTemporal;
}

}  // namespace

void EncodeArrayWith(Stores stores, const ArrayConversion& how, std::span<const float> values,
                     std::span<uint16_t> codes) {
  ConvertInBlocks<uint16_t>(kEncoded, how.conversion.format, values.size(), codes.size(),
                            [&](size_t begin, size_t count) {
                              DLSIM_DISPATCH(EncodeBlock16)
                              (stores, From(begin, how), &values[begin], count, &codes[begin]);
                            });
}

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint16_t> codes) {
  EncodeArrayWith(StoresFor(codes.size_bytes()), how, values, codes);
}

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint32_t> codes) {
  ConvertInBlocks<uint32_t>(kEncoded, how.conversion.format, values.size(), codes.size(),
                            [&](size_t begin, size_t count) {
                              DLSIM_DISPATCH(EncodeBlock32)
                              (From(begin, how), &values[begin], count, &codes[begin]);
                            });
}

void DecodeArrayWith(Stores stores, const Format& format, std::span<const uint16_t> codes,
                     std::span<float> values) {
  ConvertInBlocks<uint16_t>(
      kDecoded, format, codes.size(), values.size(), [&](size_t begin, size_t count) {
        DLSIM_DISPATCH(DecodeBlock16)(stores, format, &codes[begin], count, &values[begin]);
      });
}

void DecodeArray(const Format& format, std::span<const uint16_t> codes, std::span<float> values) {
  DecodeArrayWith(StoresFor(values.size_bytes()), format, codes, values);
}

void DecodeArray(const Format& format, std::span<const uint32_t> codes, std::span<float> values) {
  ConvertInBlocks<uint32_t>(
      kDecoded, format, codes.size(), values.size(), [&](size_t begin, size_t count) {
        DLSIM_DISPATCH(DecodeBlock32)(format, &codes[begin], count, &values[begin]);
      });
}

}  // namespace dlsim
#endif  // HWY_ONCE
