// SPDX-License-Identifier: Apache-2.0
// Decodes blocks: the tuned formats with 16-bit codes in runs of whole vectors, all else lane by
// lane; re-included per SIMD target.
#if defined(DLSIM_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_DECODE_INL_H_
#undef DLSIM_DECODE_INL_H_
#else
#define DLSIM_DECODE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "src/codec/encode_loop-inl.h"
#include "src/codec/stores.h"
#include "src/codec/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Decodes any format.
template <class Code>
HWY_NOINLINE void DecodeLanewise(const Format& format, const Code* HWY_RESTRICT codes, size_t count,
                                 float* HWY_RESTRICT values) {
  constexpr VectorLanes kLanes;
  const CodecSpec spec = MakeCodecSpec({format});
  const auto magnitude_mask = kLanes.Set(MagnitudeMask(format));
  const size_t lanes = VectorLanes::Count();
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = kLanes.LoadCodes(codes + i);
    const auto sign = kLanes.And(kLanes.ShlBy(code, spec.sign_shift), kLanes.Set(codec::kSignBit));
    const auto bits = lanewise::DecodeMagnitude(kLanes, spec, kLanes.And(code, magnitude_mask));
    kLanes.StoreFloats(kLanes.Or(sign, bits), values + i);
  }
  for (; i < count; ++i) values[i] = std::bit_cast<float>(Decode(spec, codes[i]));
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
  using F = hn::Vec<decltype(VectorLanes::kF32)>;
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
    const V bits = hn::BitCast(VectorLanes::kU32,
                               hn::ShiftLeft<kShift>(hn::PromoteTo(VectorLanes::kI32, code)));
    const F g = Float(hn::OrAnd(Set(kOnes), bits, Set(kMagnitude)));
    const F subnormal = hn::MulSub(g, Float(Set(0x40000000)), Float(Set(kOnes + (1u << 23))));
    // As integers, where NaN is large and the float's own order holds otherwise.
    const V smaller = VectorLanes().Min(Bits(g), Bits(subnormal));
    const V value = Bits(hn::Mul(Float(smaller), Float(Set(kScale))));
    return hn::OrAnd(value, bits, Set(codec::kSignBit));
  }

 private:
  static HWY_INLINE V Set(uint32_t bits) { return hn::Set(VectorLanes::kU32, bits); }
  static HWY_INLINE V Bits(F value) { return hn::BitCast(VectorLanes::kU32, value); }
  static HWY_INLINE F Float(V bits) { return hn::BitCast(VectorLanes::kF32, bits); }
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
    const V bits = hn::ShiftLeft<16>(VectorLanes().LoadCodes(codes));
    const auto nan =
        hn::RebindMask(VectorLanes::kU32, hn::IsNaN(hn::BitCast(VectorLanes::kF32, bits)));
    return hn::Or(bits, hn::IfThenElseZero(nan, hn::Set(VectorLanes::kU32, 0x00400000)));
  }
};

template <class Decoder>
class TunedDecoding {
 public:
  // Vectors are stored where values are aligned, but for the first and the last, which overlap
  // their neighbors: an element that is decoded twice gives the same value.
  static void Decode(Stores stores, const uint16_t* codes, size_t count, float* values) {
    const size_t lanes = VectorLanes::Count();
    if (count < lanes) return DecodePadded(codes, count, values);
    const auto run = stores == Stores::kNonTemporal ? DecodeRun<Stores::kNonTemporal>
                                                    : DecodeRun<Stores::kCached>;
    DecodeRun<Stores::kCached>(codes, lanes, values);
    const size_t misaligned = reinterpret_cast<uintptr_t>(values) / sizeof(*values) % lanes;
    const size_t begin = lanes - misaligned;
    const size_t end = count - (count - begin) % lanes;
    run(codes + begin, end - begin, values + begin);
    const size_t last = count - lanes;
    if (end < count) DecodeRun<Stores::kCached>(codes + last, lanes, values + last);
    if (stores == Stores::kNonTemporal) hwy::FlushStream();
  }

 private:
  // Decodes a whole number of vectors.
  template <Stores kStores>
  static HWY_NOINLINE void DecodeRun(const uint16_t* HWY_RESTRICT codes, size_t count,
                                     float* HWY_RESTRICT values) {
    constexpr Decoder kDecoder;
    const size_t lanes = VectorLanes::Count();
    for (size_t i = 0; i < count; i += lanes) {
      const auto value = hn::BitCast(VectorLanes::kF32, kDecoder(codes + i));
      if constexpr (kStores == Stores::kNonTemporal) {
        hwy::Prefetch(codes + i + kPrefetchDistance);
        hn::Stream(value, VectorLanes::kF32, values + i);
      } else {
        hn::StoreU(value, VectorLanes::kF32, values + i);
      }
    }
  }

  static void DecodePadded(const uint16_t* codes, size_t count, float* values) {
    uint16_t padded[kMaxLanes] = {};
    float results[kMaxLanes];
    std::copy_n(codes, count, padded);
    DecodeRun<Stores::kCached>(padded, VectorLanes::Count(), results);
    std::copy_n(results, count, values);
  }
};

// Decodes if there is a tuned kernel; returns whether there is.
bool DecodeIfTuned(Stores stores, const Format& format, const uint16_t* codes, size_t count,
                   float* values) {
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
  DecodeLanewise(format, codes, count, values);
}

void DecodeBlock32(const Format& format, const uint32_t* codes, size_t count, float* values) {
  DecodeLanewise(format, codes, count, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
