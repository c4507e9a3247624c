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

#include "encode_loop-inl.h"
#include "hwy/cache_control.h"
#include "stores.h"
#include "words-inl.h"

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

// A 16-bit format with subnormals. With the code's bits in place and half the bias added, g is half
// a normal value, and half of min_normal + value if the value is subnormal. So the value is
//   2 g - max(g, min_normal),
// exactly, of normal float32 operands: no assists, no flushing.
template <Format kFormat>
class GradualDecoder {
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kFormat.bias) << 23;
  static_assert(CodeBits(kFormat) == 16 && kFormat.bias < 127);
  static_assert(kFormat.denormals == Denormals::kGradual && HasInfinity(kFormat));

 public:
  // Half the bits of infinity.
  static constexpr uint32_t kLimit = (OverflowCode(kFormat) << kShift) + kMinNormal - (1u << 23);

  // Decodes a vector. Results are right unless `largest` reaches kLimit afterwards.
  HWY_INLINE V operator()(const uint16_t* codes, V& largest) const {
    const hn::Rebind<int16_t, U32Tag> i16;
    const auto code = hn::LoadU(i16, reinterpret_cast<const int16_t*>(codes));
    const V bits = hn::BitCast(VectorLanes::kU32,
                               hn::ShiftLeft<kShift>(hn::PromoteTo(VectorLanes::kI32, code)));
    // The sign fills the bits above those of the code.
    const V magnitude = hn::And(bits, Set(MagnitudeMask(kFormat) << kShift));
    const V half = hn::Add(magnitude, Set(kMinNormal - (1u << 23)));
    largest = VectorLanes().Max(largest, half);
    const auto g = Float(half);
    const auto value = hn::MulSub(g, Float(Set(0x40000000)), hn::Max(g, Float(Set(kMinNormal))));
    return hn::OrAnd(hn::BitCast(VectorLanes::kU32, value), bits, Set(codec::kSignBit));
  }

 private:
  static HWY_INLINE V Set(uint32_t bits) { return hn::Set(VectorLanes::kU32, bits); }
  static HWY_INLINE auto Float(V bits) { return hn::BitCast(VectorLanes::kF32, bits); }
};

#if DLSIM_F16C

class Fp16Decoder {
 public:
  static constexpr uint32_t kLimit = 1;  // never reached

  HWY_INLINE V operator()(const uint16_t* codes, V&) const {
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
  static constexpr uint32_t kLimit = 1;  // never reached

  HWY_INLINE V operator()(const uint16_t* codes, V&) const {
    const V bits = hn::ShiftLeft<16>(VectorLanes().LoadCodes(codes));
    const auto nan =
        hn::RebindMask(VectorLanes::kU32, hn::IsNaN(hn::BitCast(VectorLanes::kF32, bits)));
    return hn::Or(bits, hn::IfThenElseZero(nan, hn::Set(VectorLanes::kU32, 0x00400000)));
  }
};

// Elements between two checks for codes that a decoder leaves to DecodeLanewise.
inline constexpr size_t kDecodeRun = 1024;

template <class Decoder>
class TunedDecoding {
 public:
  // Vectors are stored where values are aligned, but for the first and the last, which overlap
  // their neighbours: an element that is decoded twice gives the same value.
  static void Decode(Stores stores, const Format& format, const uint16_t* codes, size_t count,
                     float* values) {
    const size_t lanes = VectorLanes::Count();
    if (count < lanes) return DecodePadded(format, codes, count, values);
    const auto run = stores == Stores::kNonTemporal ? DecodeRun<Stores::kNonTemporal>
                                                    : DecodeRun<Stores::kCached>;
    DecodeRun<Stores::kCached>(format, codes, lanes, values);
    const size_t misaligned = reinterpret_cast<uintptr_t>(values) / sizeof(*values) % lanes;
    size_t begin = lanes - misaligned;
    const size_t end = count - (count - begin) % lanes;
    for (; begin < end; begin += kDecodeRun) {
      run(format, codes + begin, HWY_MIN(kDecodeRun, end - begin), values + begin);
    }
    const size_t last = count - lanes;
    if (end < count) DecodeRun<Stores::kCached>(format, codes + last, lanes, values + last);
    if (stores == Stores::kNonTemporal) hwy::FlushStream();
  }

 private:
  // Decodes a whole number of vectors.
  template <Stores kStores>
  static HWY_NOINLINE void DecodeRun(const Format& format, const uint16_t* HWY_RESTRICT codes,
                                     size_t count, float* HWY_RESTRICT values) {
    constexpr Decoder kDecoder;
    const size_t lanes = VectorLanes::Count();
    V largest = hn::Zero(VectorLanes::kU32);
    for (size_t i = 0; i < count; i += lanes) {
      const auto value = hn::BitCast(VectorLanes::kF32, kDecoder(codes + i, largest));
      if constexpr (kStores == Stores::kNonTemporal) {
        hwy::Prefetch(codes + i + kPrefetchDistance);
        hn::Stream(value, VectorLanes::kF32, values + i);
      } else {
        hn::StoreU(value, VectorLanes::kF32, values + i);
      }
    }
    constexpr VectorLanes kLanes;
    const auto below = kLanes.Set(Decoder::kLimit - 1);
    if (HWY_UNLIKELY(!kLanes.AllFalse(kLanes.Lt(below, largest)))) {
      DecodeLanewise(format, codes, count, values);
    }
  }

  static void DecodePadded(const Format& format, const uint16_t* codes, size_t count,
                           float* values) {
    uint16_t padded[kMaxLanes] = {};
    float results[kMaxLanes];
    std::copy_n(codes, count, padded);
    DecodeRun<Stores::kCached>(format, padded, VectorLanes::Count(), results);
    std::copy_n(results, count, values);
  }
};

// Decodes if there is a tuned kernel; returns whether there is.
bool DecodeIfTuned(Stores stores, const Format& format, const uint16_t* codes, size_t count,
                   float* values) {
  if (format == kFp16) {
    TunedDecoding<Fp16Decoder>::Decode(stores, format, codes, count, values);
  } else if (format == kBf16) {
    TunedDecoding<Bf16Decoder>::Decode(stores, format, codes, count, values);
  } else if (format == kCb16) {
    TunedDecoding<GradualDecoder<kCb16>>::Decode(stores, format, codes, count, values);
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
