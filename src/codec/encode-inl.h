// SPDX-License-Identifier: Apache-2.0
// Encodes blocks: the tuned formats with 16-bit codes in runs of whole vectors, all else lane by
// lane; re-included per SIMD target.
#if defined(DLSIM_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_INL_H_
#undef DLSIM_ENCODE_INL_H_
#else
#define DLSIM_ENCODE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "src/base/float_environment.h"
#include "src/codec/encode_direct-inl.h"
#include "src/codec/encode_gradual-inl.h"
#include "src/codec/encode_loop-inl.h"
#include "src/codec/encode_stochastic-inl.h"
#include "src/codec/stores.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Encodes to any format, with any options.
template <Rounding kRounding, class Code>
HWY_NOINLINE void EncodeLanewise(const ArrayConversion& how, const float* HWY_RESTRICT values,
                                 size_t count, Code* HWY_RESTRICT codes) {
  constexpr VectorLanes kLanes;
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const auto whole = [&](size_t i, VectorLanes::V, VectorLanes::V scaled,
                         VectorLanes::V random) HWY_ATTR {
    const auto rounded = lanewise::EncodeMagnitude<kRounding>(kLanes, spec, scaled, random);
    const auto sign = lanewise::SignOfCode(kLanes, spec, scaled);
    kLanes.StoreCodes(kLanes.Or(sign, rounded.magnitude), codes + i);
  };
  const auto single = [&](size_t i, uint32_t, uint32_t, EncodeResult result) {
    codes[i] = static_cast<Code>(result.code);
  };
  EncodeLoop<kRounding>(spec, how.scale, how.random, how.first_index, values, count, whole, single);
}

#if HWY_TARGET != HWY_SCALAR

// Elements between two checks for inputs that an encoder leaves to EncodeLanewise (infinities, NaN,
// far too large values): a run and its codes are still in the first-level cache then. It is tried
// again in smaller pieces, so that few such inputs cost little.
inline constexpr size_t kEncodeRun = 4096;
inline constexpr size_t kEncodeRetry = 128;

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
    constexpr VectorLanes kLanes;
    constexpr Encoder kEncoder;
    const size_t words = WordCount();
    Words largest = SetWords(0);
    for (size_t i = 0; i < count; i += words) {
      V x0 = kLanes.LoadFloats(values + i), x1 = kLanes.LoadFloats(values + i + words / 2);
      if constexpr (kScaled) {
        x0 = kLanes.MulFloat(x0, how.scale);
        x1 = kLanes.MulFloat(x1, how.scale);
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
    if (count <= kEncodeRetry) return EncodeLanewise<kRounding>(how, values, count, codes);
    for (size_t i = 0; i < count; i += kEncodeRetry) {
      EncodeRun<kScaled, kStores>(how, values + i, HWY_MIN(kEncodeRetry, count - i), codes + i);
    }
  }

  // Vectors are stored where codes are aligned, but for the first and the last, which overlap
  // their neighbors: an element that is encoded twice gives the same code.
  template <bool kScaled>
  static void EncodeRuns(Stores stores, const ArrayConversion& how, const float* values,
                         size_t count, uint16_t* codes) {
    const size_t words = WordCount();
    if (count < words) return EncodePadded<kScaled>(how, values, count, codes);
    const auto run = stores == Stores::kNonTemporal ? EncodeRun<kScaled, Stores::kNonTemporal>
                                                    : EncodeRun<kScaled, Stores::kCached>;
    EncodeRun<kScaled, Stores::kCached>(how, values, words, codes);
    const size_t misaligned = reinterpret_cast<uintptr_t>(codes) / sizeof(*codes) % words;
    size_t begin = words - misaligned;
    const size_t end = count - (count - begin) % words;
    for (; begin < end; begin += kEncodeRun) {
      run(how, values + begin, HWY_MIN(kEncodeRun, end - begin), codes + begin);
    }
    const size_t last = count - words;
    if (end < count) EncodeRun<kScaled, Stores::kCached>(how, values + last, words, codes + last);
    if (stores == Stores::kNonTemporal) hwy::FlushStream();
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

  template <bool kScaled>
  static void EncodePadded(const ArrayConversion& how, const float* values, size_t count,
                           uint16_t* codes) {
    float padded[2 * kMaxLanes] = {};
    uint16_t results[2 * kMaxLanes];
    std::copy_n(values, count, padded);
    EncodeRun<kScaled, Stores::kCached>(how, padded, WordCount(), results);
    std::copy_n(results, count, codes);
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

// Encodes to a tuned format, where `how` has at least a vector of elements or no options.
template <Rounding kRounding, class Encoder>
void EncodeTuned(Stores stores, const ArrayConversion& how, const float* values, size_t count,
                 uint16_t* codes) {
  using Encoding = TunedEncoding<kRounding, Encoder>;
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  if (!spec.saturates && spec.flush_below == 0) {
    return Encoding::Encode(stores, how, values, count, codes);
  }
  if (count < WordCount()) return EncodeLanewise<kRounding>(how, values, count, codes);
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
  DispatchRounding(how.conversion.rounding, [&](auto rounding) {
    constexpr Rounding kRounding = decltype(rounding)::value;
    if (EncodeIfTuned<kRounding>(stores, how, values, count, codes)) return;
    EncodeLanewise<kRounding>(how, values, count, codes);
  });
}

void EncodeBlock32(const ArrayConversion& how, const float* values, size_t count, uint32_t* codes) {
  DispatchRounding(how.conversion.rounding, [&](auto rounding) {
    EncodeLanewise<decltype(rounding)::value>(how, values, count, codes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
