// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to the IEEE-like formats of 16 bits, random bits included; per SIMD target.
#if defined(DLSIM_ENCODE_STOCHASTIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_STOCHASTIC_INL_H_
#undef DLSIM_ENCODE_STOCHASTIC_INL_H_
#else
#define DLSIM_ENCODE_STOCHASTIC_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "dlsim/convert.h"
#include "hwy/cache_control.h"
#include "src/codec/codec-inl.h"
#include "src/codec/random-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

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
  using V = VectorLanes::V;

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
    constexpr VectorLanes kLanes;
    const size_t lanes = VectorLanes::Count();
    V bits[kGroupVectors];
    for (size_t i = 0; i < kGroupVectors; ++i) bits[i] = kLanes.LoadFloats(values + i * lanes);
    if (how_.scale != 1.0f) {  // processors take long to multiply subnormal numbers
      for (V& of_vector : bits) of_vector = kLanes.MulFloat(of_vector, how_.scale);
    }
    V sums[kGroupVectors] = {
        kLanes.Add(FixedPoint(bits[0]), RandomOf<0>(random)),
        kLanes.Add(FixedPoint(bits[1]), RandomOf<1>(random)),
        kLanes.Add(FixedPoint(bits[2]), RandomOf<2>(random)),
        kLanes.Add(FixedPoint(bits[3]), RandomOf<3>(random)),
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
      for (size_t i = 0; i < kGroupVectors; ++i) kLanes.StoreCodes(sums[i], lane_sums + i * lanes);
      EncodeUndecided(index, values, lane_sums, codes);
    }
  }

 private:
  using U16Tag = hn::Repartition<uint16_t, U32Tag>;

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
    constexpr VectorLanes kLanes;
    const auto magnitude = [&](size_t i) HWY_ATTR { return Magnitude(bits[i]); };
    const V largest =
        kLanes.Max(kLanes.Max(magnitude(0), magnitude(1)), kLanes.Max(magnitude(2), magnitude(3)));
    return !kLanes.AllFalse(kLanes.Lt(kLanes.Set(codec::kInfinityBits), largest));
#endif
  }

  static HWY_INLINE V Magnitude(V bits) {
    constexpr VectorLanes kLanes;
    return kLanes.And(bits, kLanes.Set(~codec::kSignBit));
  }

  // Infinity and whatever rounds past it become the limit, which has no fraction.
  HWY_INLINE V ClampedMagnitude(V bits) const {
    constexpr VectorLanes kLanes;
#if HWY_TARGET <= HWY_AVX3
    constexpr int kMinMagnitudeWithoutSign = 0xA;
    const auto limit = _mm512_castsi512_ps(kLanes.Set(limit_bits_).raw);
    return V{_mm512_castps_si512(
        _mm512_range_ps(_mm512_castsi512_ps(bits.raw), limit, kMinMagnitudeWithoutSign))};
#else
    return kLanes.Min(Magnitude(bits), kLanes.Set(limit_bits_));
#endif
  }

  static HWY_INLINE V TruncateToInteger(V bits) {
    const auto x = hn::BitCast(VectorLanes::kF32, bits);
#if HWY_TARGET <= HWY_AVX3
    return V{_mm512_cvttps_epi32(x.raw)};
#elif HWY_TARGET == HWY_AVX2
    return V{_mm256_cvttps_epi32(x.raw)};
#else
    return hn::BitCast(VectorLanes::kU32, hn::ConvertTo(VectorLanes::kI32, x));
#endif
  }

  // Returns float32 bits as a code followed by 16 bits of fraction. NaN may become anything.
  HWY_INLINE V FixedPoint(V bits) const {
    constexpr VectorLanes kLanes;
    if constexpr (kSumsHaveSigns) {
      // Infinity has no fraction and overflow ends there.
      return spec_.saturates ? WithSign(ClampedMagnitude(bits), bits) : bits;
    } else {
      const V magnitude = ClampedMagnitude(bits);
      const V rebiased = kLanes.Sub(magnitude, kLanes.Set(spec_.rebias));
      const V normal = kLanes.Shl(rebiased, kLanes.Set(16 - spec_.dropped_bits));
      const V subnormal = TruncateToInteger(kLanes.MulFloat(magnitude, units_));
      const auto is_subnormal = kLanes.Lt(magnitude, kLanes.Set(spec_.min_normal_bits));
      return kLanes.Select(is_subnormal, subnormal, normal);
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
    constexpr VectorLanes kLanes;
    const V payload =
        kLanes.ShrBy(kLanes.And(bits, kLanes.Set(codec::kMantissaMask)), spec_.dropped_bits);
    const V code = kLanes.ShlBy(kLanes.Or(kLanes.Set(spec_.nan_code), payload), 16);
    const auto nan = kLanes.Lt(kLanes.Set(codec::kInfinityBits), Magnitude(bits));
    return kLanes.Select(nan, kSumsHaveSigns ? WithSign(code, bits) : code, sum);
  }

  HWY_INLINE V WithoutSubnormals(V sum) const {
    constexpr VectorLanes kLanes;
    const auto below = kLanes.Lt(Magnitude(sum), kLanes.Set(spec_.flush_below << 16));
    return kLanes.Select(below, kLanes.And(sum, kLanes.Set(codec::kSignBit)), sum);
  }

  static HWY_INLINE V WithSign(V magnitude, V bits) {
    return hn::OrAnd(magnitude, bits, hn::Set(U32Tag(), codec::kSignBit));
  }
  static HWY_INLINE V Signed(V sum, V bits) { return kSumsHaveSigns ? sum : WithSign(sum, bits); }

  // Encodes the undecided among a group's elements once more, with all 32 random bits.
  HWY_NOINLINE void EncodeUndecided(uint64_t index, const float* values, const uint32_t* sums,
                                    uint16_t* codes) const {
    for (size_t i = 0; i < kGroupVectors * VectorLanes::Count(); ++i) {
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

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard per target
