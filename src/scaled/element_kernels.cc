// SPDX-License-Identifier: Apache-2.0
#include "src/scaled/element_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/scaled/element_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/codec-inl.h"
#include "src/codec/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

using V = VectorLanes::V;

// Magnitude bits; 0 for NaN.
HWY_INLINE V OrderedMagnitude(V bits) {
  constexpr VectorLanes kLanes;
  const V magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
  const V zero = kLanes.Set(0);
  return kLanes.Select(kLanes.Lt(kLanes.Set(codec::kInfinityBits), magnitude), zero, magnitude);
}

HWY_INLINE uint32_t OrderedMagnitude(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  return magnitude > codec::kInfinityBits ? 0 : magnitude;
}

void RaiseEachOnTarget(const float* HWY_RESTRICT values, size_t count,
                       uint32_t* HWY_RESTRICT largest) {
  constexpr VectorLanes kLanes;
  const size_t lanes = VectorLanes::Count();
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V magnitude = OrderedMagnitude(kLanes.LoadFloats(values + i));
    kLanes.StoreCodes(kLanes.Max(kLanes.LoadCodes(largest + i), magnitude), largest + i);
  }
  for (; i < count; ++i) largest[i] = std::max(largest[i], OrderedMagnitude(values[i]));
}

void RaiseForGroupsOnTarget(const float* HWY_RESTRICT values, size_t count, size_t width,
                            uint32_t* HWY_RESTRICT largest) {
  constexpr VectorLanes kLanes;
  const size_t lanes = VectorLanes::Count();
  for (size_t begin = 0; begin < count; begin += width, ++largest) {
    const size_t end = HWY_MIN(count, begin + width);
    V most = kLanes.Set(*largest);
    size_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      most = kLanes.Max(most, OrderedMagnitude(kLanes.LoadFloats(values + i)));
    }
    uint32_t found = kLanes.MaxOfLanes(most);
    for (; i < end; ++i) found = std::max(found, OrderedMagnitude(values[i]));
    *largest = found;
  }
}

// An element that is rounded. Let 2^e be the power of two at or below the magnitude, or the
// smallest normal if that is larger: the result is a multiple of the last bit q = 2^(e - m). The
// sum with C = 2^(e + d), d being the dropped bits, stays below 2C, where q is the last bit of
// float32: the addition rounds, and what the sum is more than C is the result in units of q.
struct Rounded {
  V code;       // without sign
  V magnitude;  // float32 bits; where the magnitude was a number
};

HWY_INLINE Rounded RoundElement(const CodecSpec& spec, V magnitude) {
  constexpr VectorLanes kLanes;
  const V bounded = kLanes.Min(magnitude, kLanes.Set(spec.plain_max_bits));
  const V min_normal = kLanes.Set(spec.min_normal_bits);
  const V exponent = kLanes.Max(kLanes.And(bounded, kLanes.Set(codec::kInfinityBits)), min_normal);
  const V c = kLanes.Add(exponent, kLanes.Set(spec.dropped_bits << 23));
  const V sum = kLanes.AddFloat(bounded, c);
  const V units = kLanes.Sub(sum, c);
  // A normal result has 2^m units more than its mantissa, and the exponent 1 is that of subnormals.
  const V binades = kLanes.ShrBy(kLanes.Sub(exponent, min_normal), spec.dropped_bits);
  return {kLanes.Add(units, binades), kLanes.SubFloat(sum, c)};
}

HWY_INLINE V Scaled(const float* values, const float* factors) {
  constexpr VectorLanes kLanes;
  return kLanes.MulFloats(kLanes.LoadFloats(values), kLanes.LoadFloats(factors));
}

void EncodeOnTarget(const CodecSpec& spec, const float* HWY_RESTRICT values,
                    const float* HWY_RESTRICT factors, size_t count, uint8_t* HWY_RESTRICT codes) {
  constexpr VectorLanes kLanes;
  const size_t lanes = VectorLanes::Count();
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V bits = Scaled(values + i, factors + i);
    const V magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
    const V payload =
        kLanes.ShrBy(kLanes.And(magnitude, kLanes.Set(codec::kMantissaMask)), spec.dropped_bits);
    const V nan = kLanes.Or(kLanes.Set(spec.nan_code), payload);
    const V code = kLanes.Select(kLanes.Lt(kLanes.Set(codec::kInfinityBits), magnitude), nan,
                                 RoundElement(spec, magnitude).code);
    kLanes.StoreCodes(kLanes.Or(lanewise::SignOfCode(kLanes, spec, bits), code), codes + i);
  }
  for (; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i] * factors[i]);
    codes[i] = static_cast<uint8_t>(EncodeWith<Rounding::kNearestEven>(spec, bits, 0).code);
  }
}

void DecodeOnTarget(const CodecSpec& spec, const uint8_t* HWY_RESTRICT codes,
                    const float* HWY_RESTRICT factors, size_t count, float* HWY_RESTRICT values) {
  constexpr VectorLanes kLanes;
  const size_t lanes = VectorLanes::Count();
  const V magnitudes = kLanes.Set((codec::kSignBit >> spec.sign_shift) - 1);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V code = kLanes.LoadCodes(codes + i);
    const V sign = kLanes.And(kLanes.ShlBy(code, spec.sign_shift), kLanes.Set(codec::kSignBit));
    const V bits = lanewise::DecodeMagnitude(kLanes, spec, kLanes.And(code, magnitudes));
    kLanes.StoreFloats(kLanes.MulFloats(kLanes.Or(sign, bits), kLanes.LoadFloats(factors + i)),
                       values + i);
  }
  for (; i < count; ++i) values[i] = std::bit_cast<float>(Decode(spec, codes[i])) * factors[i];
}

// Counts elements, the lanes of a vector at a time.
class ElementCounter {
 public:
  explicit ElementCounter(const CodecSpec& spec)
      : spec_(spec), absmax_(kLanes.Set(0)), largest_(kLanes.Set(0)) {}

  // Stores the results.
  HWY_INLINE void Add(const float* values, const float* encode, const float* decode,
                      float* decoded) {
    const V input = kLanes.And(kLanes.LoadFloats(values), Magnitudes());
    const V scaled = Scaled(values, encode);
    const V magnitude = kLanes.And(scaled, Magnitudes());
    const V element = RoundElement(spec_, magnitude).magnitude;
    const V sign = kLanes.And(scaled, kLanes.Set(codec::kSignBit));
    const V result = kLanes.MulFloats(kLanes.Or(sign, element), kLanes.LoadFloats(decode));
    const V output = kLanes.And(result, Magnitudes());
    kLanes.StoreFloats(result, decoded);
    absmax_ = kLanes.Max(absmax_, input);
    largest_ = kLanes.Max(largest_, kLanes.Max(magnitude, output));
    const auto vanished = kLanes.Eq(output, kLanes.Set(0));
    const auto small = kLanes.Lt(element, kLanes.Set(spec_.min_normal_bits));
    counts_.zeros += kLanes.CountTrue(kLanes.Eq(input, kLanes.Set(0)));
    counts_.vanished += kLanes.CountTrue(vanished);
    counts_.subnormal += kLanes.CountTrue(kLanes.MaskAndNot(vanished, small));
    counts_.clipped += kLanes.CountTrue(kLanes.Lt(kLanes.Set(spec_.plain_max_bits), magnitude));
  }

  // The same for one element, by the scalar reference.
  void AddSingle(float value, float encode, float decode, float& decoded) {
    const uint32_t scaled = std::bit_cast<uint32_t>(value * encode);
    const uint32_t code = EncodeWith<Rounding::kNearestEven>(spec_, scaled, 0).code;
    decoded = std::bit_cast<float>(Decode(spec_, code)) * decode;
    counts_.finite &=
        std::isfinite(value) && std::isfinite(value * encode) && std::isfinite(decoded);
    counts_.absmax = std::fmax(counts_.absmax, std::fabs(value));
    counts_.zeros += value == 0;
    counts_.vanished += decoded == 0;
    counts_.subnormal += decoded != 0 && Classify(spec_, code) == CodeClass::kSubnormal;
    counts_.clipped += (scaled & ~codec::kSignBit) > spec_.plain_max_bits;
  }

  ElementCounts Finish() const {
    ElementCounts counts = counts_;
    const uint32_t absmax = kLanes.MaxOfLanes(absmax_);
    counts.finite &= std::max(absmax, kLanes.MaxOfLanes(largest_)) < codec::kInfinityBits;
    counts.absmax = std::fmax(counts.absmax, std::bit_cast<float>(absmax));
    return counts;
  }

 private:
  static constexpr VectorLanes kLanes{};
  static HWY_INLINE V Magnitudes() { return kLanes.Set(~codec::kSignBit); }

  const CodecSpec& spec_;
  V absmax_, largest_;  // bits: of values; of what is made of them
  ElementCounts counts_;
};

ElementCounts MeasureOnTarget(const CodecSpec& spec, const Stretch& stretch,
                              const float* HWY_RESTRICT values, float* HWY_RESTRICT decoded) {
  const size_t lanes = VectorLanes::Count();
  ElementCounter counter(spec);
  size_t i = 0;
  for (; i + lanes <= stretch.count; i += lanes) {
    counter.Add(values + i, stretch.encode + i, stretch.decode + i, decoded + i);
  }
  for (; i < stretch.count; ++i) {
    counter.AddSingle(values[i], stretch.encode[i], stretch.decode[i], decoded[i]);
  }
  return counter.Finish();
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(RaiseEachOnTarget);
DLSIM_EXPORT(RaiseForGroupsOnTarget);
DLSIM_EXPORT(EncodeOnTarget);
DLSIM_EXPORT(DecodeOnTarget);
DLSIM_EXPORT(MeasureOnTarget);

}  // namespace

void RaiseEach(const float* values, size_t count, uint32_t* largest) {
  DLSIM_DISPATCH(RaiseEachOnTarget)(values, count, largest);
}

void RaiseForGroups(const float* values, size_t count, size_t width, uint32_t* largest) {
  DLSIM_DISPATCH(RaiseForGroupsOnTarget)(values, count, width, largest);
}

void EncodeElements(const CodecSpec& spec, const Stretch& stretch, const float* values,
                    uint8_t* codes) {
  DLSIM_DISPATCH(EncodeOnTarget)(spec, values, stretch.encode, stretch.count, codes);
}

void DecodeElements(const CodecSpec& spec, const Stretch& stretch, const uint8_t* codes,
                    float* values) {
  DLSIM_DISPATCH(DecodeOnTarget)(spec, codes, stretch.decode, stretch.count, values);
}

ElementCounts MeasureElements(const CodecSpec& spec, const Stretch& stretch, const float* values,
                              float* decoded) {
  return DLSIM_DISPATCH(MeasureOnTarget)(spec, stretch, values, decoded);
}

}  // namespace dlsim
#endif  // HWY_ONCE
