// SPDX-License-Identifier: Apache-2.0
// Rounds values to a format with subnormals, not by chance, and keeps them in float32; re-included
// per SIMD target.
#if defined(DLSIM_ROUND_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ROUND_VALUES_INL_H_
#undef DLSIM_ROUND_VALUES_INL_H_
#else
#define DLSIM_ROUND_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/codec/encode_loop-inl.h"
#include "src/measure/chunk_rows-inl.h"
#include "src/measure/measure_rounded.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if DLSIM_HAS_CHUNK_ROWS

// Rounds by the addition of NearestRows, x + C - C, to nearest even. Where the mode says otherwise
// the last bit of x + C, which is the last that the result keeps, is moved by one before C is taken
// away again.
// `kBounds`: there may be results to flush or beyond the largest one. `kProducts`: values are not
// scaled, but rounded as float32 would round scaled ones that are subnormal.
template <Rounding kRounding, bool kBounds, bool kProducts>
class ValueRounder {
 public:
  using X = RowVectors;
  using V = X::V;

  explicit ValueRounder(const RoundedSpec& spec)
      : min_normal_(hn::Set(X::kU32, spec.min_normal_bits)),
        flush_below_(hn::Set(X::kU32, spec.flushes ? spec.min_normal_bits : 0)),
        max_(hn::Set(X::kU32, spec.max_bits)),
        past_max_(hn::Set(X::kU32, spec.past_max_bits)),
        dropped_(hn::Set(X::kU32, (spec.dropped_bits - (kHalves ? 1 : 0)) << 23)),
        rounded_product_(hn::Set(X::kU32, spec.rounded_product_bits)),
        scale_(hn::Set(X::kF32, spec.scale)),
        saturates_(spec.saturates) {}

  // Results beyond the largest one stay as they are where they saturate.
  HWY_INLINE X::F operator()(const float* at) const {
    X::F scaled = hn::LoadU(X::kF32, at);
    if constexpr (!kProducts) scaled = hn::Mul(scaled, scale_);
    const V bits = X::Bits(scaled), sign = hn::And(bits, hn::Set(X::kU32, codec::kSignBit));
    V magnitude = hn::Xor(bits, sign);
    if constexpr (kProducts) magnitude = RoundProduct(magnitude, rounded_product_);
    const X::M negative = X::Lt(bits, hn::Zero(X::kU32));
    V result = Round(magnitude, negative);
    if constexpr (kBounds) {
      result = hn::IfThenZeroElse(X::Lt(result, flush_below_), result);
      if (!saturates_) result = Bound(result, negative);
    }
    return X::Float(hn::Or(result, sign));
  }

 private:
  // Ties away from zero: toward zero to half units, then to units, with halves rounded up.
  static constexpr bool kHalves = kRounding == Rounding::kNearestAway;
  static constexpr bool kTruncates = kRounding == Rounding::kTowardZero || kHalves;

  HWY_INLINE V Round(V magnitude, X::M negative) const {
    const V exponent = hn::And(magnitude, hn::Set(X::kU32, codec::kInfinityBits));
    const X::F c = X::Float(hn::Add(X::Max(exponent, min_normal_), dropped_));
    const X::F value = X::Float(magnitude);
    V sum = X::Bits(hn::Add(value, c));
    if constexpr (kRounding != Rounding::kNearestEven) {
      sum = Move(sum, hn::Sub(X::Float(sum), c), value, negative);
    }
    if constexpr (kHalves) {
      const V one = hn::Set(X::kU32, 1);
      sum = hn::AndNot(one, hn::Add(sum, one));
    }
    return X::Bits(hn::Sub(X::Float(sum), c));
  }

  // Moves a sum whose value was rounded to `nearest`, in the wrong direction.
  static HWY_INLINE V Move(V sum, X::F nearest, X::F value, X::M negative) {
    const V beyond = MaskOf(hn::Lt(value, nearest));
    if constexpr (kTruncates) return hn::Add(sum, beyond);
    const V below = MaskOf(hn::Lt(nearest, value));
    constexpr bool kUp = kRounding == Rounding::kTowardPositive;
    const V down = hn::Add(sum, beyond), up = hn::Sub(sum, below);
    return hn::IfThenElse(negative, kUp ? down : up, kUp ? up : down);
  }

  // -1 where it holds.
  static HWY_INLINE V MaskOf(hn::Mask<X::F32> mask) {
    return hn::VecFromMask(X::kU32, hn::RebindMask(X::kU32, mask));
  }

  HWY_INLINE V Bound(V result, X::M negative) const {
    V past = past_max_;
    if constexpr (kRounding == Rounding::kTowardZero) past = max_;
    if constexpr (kRounding == Rounding::kTowardPositive) {
      past = hn::IfThenElse(negative, max_, past_max_);
    }
    if constexpr (kRounding == Rounding::kTowardNegative) {
      past = hn::IfThenElse(negative, past_max_, max_);
    }
    return hn::IfThenElse(X::Lt(max_, result), past, result);
  }

  V min_normal_, flush_below_, max_, past_max_, dropped_, rounded_product_;
  X::F scale_;
  bool saturates_;
};

// Writes whole rows: `results` has room for them.
template <bool kBounds, bool kProducts>
HWY_NOINLINE void RoundValuesWith(const RoundedSpec& spec, const float* values, size_t count,
                                  float* results) {
  using X = RowVectors;
  const ChunkRows rows(values, count);
  DispatchRounding(spec.rounding, [&](auto rounding) HWY_ATTR {
    constexpr Rounding kRounding = decltype(rounding)::value;
    if constexpr (kRounding != Rounding::kStochastic) {
      const ValueRounder<kRounding, kBounds, kProducts> round(spec);
      rows.ForEachVector([&](const float* at, size_t i)
                             HWY_ATTR { hn::StoreU(round(at), X::kF32, results + i); });
    }
  });
}

inline void RoundValuesOf(const RoundedSpec& spec, const RoundedKernel& kernel, const float* values,
                          size_t count, float* results) {
  const bool bounds = kernel.results != RoundedResults::kFinite || (kernel.small && spec.flushes);
  auto* round = bounds ? RoundValuesWith<true, false> : RoundValuesWith<false, false>;
  if (spec.rounded_product_bits > 0) round = RoundValuesWith<true, true>;
  round(spec, values, count, results);
}

// Calls change(magnitude) for the magnitudes of a chunk's values, and writes what it returns with
// their signs.
template <class Change>
HWY_INLINE void ChangeMagnitudes(const float* from, size_t count, float* to, const Change& change) {
  using X = RowVectors;
  const auto at = [&](const float* in, float* out) HWY_ATTR {
    const X::V bits = X::Bits(hn::LoadU(X::kF32, in));
    const X::V sign = hn::And(bits, hn::Set(X::kU32, codec::kSignBit));
    hn::StoreU(X::Float(hn::Or(change(hn::Xor(bits, sign)), sign)), X::kF32, out);
  };
  size_t i = 0;
  for (; i + X::kLanes <= count; i += X::kLanes) at(from + i, to + i);
  if (i == count) return;
  float last[X::kLanes] = {};
  std::copy(from + i, from + count, last);
  at(last, last);
  std::copy_n(last, count - i, to + i);
}

// Multiplies by the scale that a spec without multiplications had, without multiplying: processors
// take long for subnormal numbers, which x + C shows as integers.
inline void ScaleDown(const RoundedSpec& spec, const float* values, size_t count, float* scaled) {
  using X = RowVectors;
  const X::V limit = hn::Set(X::kU32, spec.rounded_product_bits);
  const X::V shift = hn::Sub(limit, hn::Set(X::kU32, codec::kImplicitBit));
  ChangeMagnitudes(values, count, scaled, [&](X::V magnitude) HWY_ATTR {
    const X::V sum = X::Bits(hn::Add(X::Float(magnitude), X::Float(limit)));
    return hn::IfThenElse(X::Lt(magnitude, limit), hn::Sub(sum, limit), hn::Sub(magnitude, shift));
  });
}

// Divides by it.
inline void ScaleUp(const RoundedSpec& spec, float* results, size_t count) {
  using X = RowVectors;
  const X::V limit = hn::Set(X::kU32, spec.rounded_product_bits);
  const X::V least = hn::Set(X::kU32, codec::kImplicitBit), shift = hn::Sub(limit, least);
  ChangeMagnitudes(results, count, results, [&](X::V magnitude) HWY_ATTR {
    const X::F sum = X::Float(hn::Add(magnitude, limit));
    const X::V of_subnormal = X::Bits(hn::Sub(sum, X::Float(limit)));
    return hn::IfThenElse(X::Lt(magnitude, least), of_subnormal, hn::Add(magnitude, shift));
  });
}

#endif  // DLSIM_HAS_CHUNK_ROWS

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
