// SPDX-License-Identifier: Apache-2.0
// The operations of PyTorch that optimizers are made of, on the lanes of a vector: computed in
// float32 and rounded to the format of the tensor, as its kernels do (docs/updates.md). What is
// fused there is Fma here; what is not is rounded in between. Re-included per SIMD target.
#if defined(DLSIM_ARITHMETIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ARITHMETIC_INL_H_
#undef DLSIM_ARITHMETIC_INL_H_
#else
#define DLSIM_ARITHMETIC_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "sim/updates/float_lanes-inl.h"
#include "sim/updates/stored_format.h"
#include "src/codec/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::sim {
namespace HWY_NAMESPACE {

// What a float32 value becomes in a tensor: itself, or the nearest value of a format, ties to even,
// bit for bit that of NearestIn.
template <class Floats>
struct KeepFloat32 {
  HWY_INLINE typename Floats::F operator()(typename Floats::F value) const { return value; }
};

template <class Floats>
class KeepFormat {
 public:
  using F = typename Floats::F;
  using Bits = typename Floats::Bits;

  explicit KeepFormat(const CodecSpec& spec) : spec_(spec) {}

  HWY_INLINE F operator()(F value) const {
    constexpr Floats kFloats;
    constexpr Bits kLanes;
    if (!spec_.gradual) return OneByOne(value);
    const auto bits = kFloats.ToBits(value);
    const auto magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
    const auto sign = kLanes.And(bits, kLanes.Set(codec::kSignBit));
    const auto below = kLanes.MaskAndNot(kLanes.Eq(magnitude, kLanes.Set(0)),
                                         kLanes.Lt(magnitude, kLanes.Set(spec_.plain_min_bits)));
    const auto above = kLanes.Lt(kLanes.Set(spec_.plain_max_bits), magnitude);
    if (!kFloats.AllFalse(below) || !kFloats.AllFalse(above)) [[unlikely]]
      return WithCodes(value);
    const auto negative = kLanes.Lt(bits, kLanes.Set(0));
    const auto rounded = lanewise::QuantizePlain<Rounding::kNearestEven>(kLanes, spec_, magnitude,
                                                                         negative, magnitude);
    return kFloats.FromBits(kLanes.Or(sign, rounded));
  }

 private:
  // What is rare is not inlined, into each operation of each optimizer: that took half a minute.
  HWY_NOINLINE F WithCodes(F value) const {
    constexpr Floats kFloats;
    constexpr Bits kLanes;
    const auto bits = kFloats.ToBits(value);
    const auto code =
        lanewise::EncodeMagnitude<Rounding::kNearestEven>(kLanes, spec_, bits, bits).magnitude;
    const auto sign = kLanes.And(bits, kLanes.Set(codec::kSignBit));
    return kFloats.FromBits(kLanes.Or(sign, lanewise::DecodeMagnitude(kLanes, spec_, code)));
  }

  HWY_NOINLINE F OneByOne(F value) const {
    constexpr Floats kFloats;
    float values[kMostLanes];
    kFloats.Store(value, values);
    for (size_t i = 0; i < Floats::Count(); ++i) values[i] = NearestIn(spec_, values[i]);
    return kFloats.Load(values);
  }

  CodecSpec spec_;
};

// The upper half of float32: adding just below half of its last bit carries into it.
template <class Floats>
struct KeepBf16 {
  HWY_INLINE typename Floats::F operator()(typename Floats::F value) const {
    constexpr Floats kFloats;
    constexpr typename Floats::Bits kLanes;
    const auto bits = kFloats.ToBits(value);
    const auto odd = kLanes.And(kLanes.ShrBy(bits, 16), kLanes.Set(1));
    const auto rounded = kLanes.Add(bits, kLanes.Add(odd, kLanes.Set(0x7FFF)));
    const auto magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
    const auto nan = kLanes.Lt(kLanes.Set(codec::kInfinityBits), magnitude);
    const auto quiet = kLanes.Or(bits, kLanes.Set(0x00400000));
    const auto either = kLanes.Select(nan, quiet, rounded);
    return kFloats.FromBits(kLanes.And(either, kLanes.Set(0xFFFF0000)));
  }
};

#if DLSIM_F16C && HWY_TARGET != HWY_SCALAR

// The processor's own conversions.
template <class Floats>
struct KeepFp16 {
  HWY_INLINE typename Floats::F operator()(typename Floats::F value) const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (std::is_same_v<Floats, VectorFloats>) {
#if DLSIM_AVX3
      return {_mm512_cvtph_ps(_mm512_cvtps_ph(value.raw, kNearest))};
#else
      return {_mm256_cvtph_ps(_mm256_cvtps_ph(value.raw, kNearest))};
#endif
    } else {
      return KeepFormat<Floats>(MakeCodecSpec({kFp16}))(value);
    }
  }
};

#else

template <class Floats>
struct KeepFp16 : KeepFormat<Floats> {
  KeepFp16() : KeepFormat<Floats>(MakeCodecSpec({kFp16})) {}
};

#endif

// The names are those of torch's operations.
template <class FloatLanes, class Keep>
class TensorOps {
 public:
  using Floats = FloatLanes;
  using F = typename Floats::F;
  static constexpr Floats kFloats{};

  explicit TensorOps(const Keep& keep) : keep_(keep) {}

  HWY_INLINE F Set(float value) const { return kFloats.Set(value); }
  HWY_INLINE F Stored(F value) const { return keep_(value); }
  HWY_INLINE F Mul(F x, F factor) const { return keep_(kFloats.Mul(x, factor)); }
  HWY_INLINE F Div(F x, F divisor) const { return keep_(kFloats.Div(x, divisor)); }
  HWY_INLINE F Add(F x, F addend) const { return keep_(kFloats.Add(x, addend)); }
  HWY_INLINE F Sqrt(F x) const { return keep_(kFloats.Sqrt(x)); }
  HWY_INLINE F Rsqrt(F x) const { return keep_(kFloats.Div(Set(1), kFloats.Sqrt(x))); }

  // x + alpha * y
  HWY_INLINE F AddScaled(F x, F y, float alpha) const {
    return keep_(kFloats.Fma(Set(alpha), y, x));
  }

  // x + weight * (y - x), from the nearer end.
  HWY_INLINE F Lerp(F x, F y, float weight) const {
    const bool near = std::fabs(weight) < 0.5f;
    const F way = kFloats.Sub(y, x);
    return keep_(near ? kFloats.Fma(Set(weight), way, x) : kFloats.Fma(Set(weight - 1), way, y));
  }

  // x + value * y * z
  HWY_INLINE F AddCMul(F x, F y, F z, float value) const {
    return keep_(kFloats.Fma(kFloats.Mul(Set(value), y), z, x));
  }

  // The same on a GPU.
  HWY_INLINE F AddCMulOnCuda(F x, F y, F z, float value) const {
    return keep_(kFloats.Fma(Set(value), kFloats.Mul(y, z), x));
  }

  // torch.maximum: NaN if one is.
  HWY_INLINE F Maximum(F x, F y) const {
    return kFloats.Select(kFloats.Either(kFloats.IsNan(x), kFloats.Lt(y, x)), x, y);
  }

 private:
  Keep keep_;
};

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::sim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
