// SPDX-License-Identifier: Apache-2.0
#include "dlsim/convert.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "check.h"
#include "parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "encode_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

template <Rounding kRounding, class Code>
void EncodeBlockWith(const ArrayConversion& how, const float* HWY_RESTRICT values, size_t count,
                     Code* HWY_RESTRICT codes) {
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

template <class Code>
void EncodeBlock(const ArrayConversion& how, const float* values, size_t count, Code* codes) {
  DispatchRounding(how.conversion.rounding, [&](auto rounding) {
    EncodeBlockWith<decltype(rounding)::value>(how, values, count, codes);
  });
}

template <class Code>
void DecodeBlock(const Format& format, const Code* HWY_RESTRICT codes, size_t count,
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

void EncodeBlock16(const ArrayConversion& how, const float* values, size_t count, uint16_t* codes) {
  EncodeBlock(how, values, count, codes);
}
void EncodeBlock32(const ArrayConversion& how, const float* values, size_t count, uint32_t* codes) {
  EncodeBlock(how, values, count, codes);
}
void DecodeBlock16(const Format& format, const uint16_t* codes, size_t count, float* values) {
  DecodeBlock(format, codes, count, values);
}
void DecodeBlock32(const Format& format, const uint32_t* codes, size_t count, float* values) {
  DecodeBlock(format, codes, count, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

HWY_EXPORT(EncodeBlock16);
HWY_EXPORT(EncodeBlock32);
HWY_EXPORT(DecodeBlock16);
HWY_EXPORT(DecodeBlock32);

template <class Code, class Kernel>
void EncodeInBlocks(const ArrayConversion& how, std::span<const float> values,
                    std::span<Code> codes, Kernel kernel) {
  DLSIM_CHECK(values.size() == codes.size());
  DLSIM_CHECK(how.first_index % kElementsPerPhiloxBlock == 0);
  DLSIM_CHECK(CodeBits(how.conversion.format) <= static_cast<int>(8 * sizeof(Code)));
  ParallelForBlocks(values.size(), [&](size_t begin, size_t count) {
    ArrayConversion block = how;
    block.first_index += begin;
    kernel(block, values.data() + begin, count, codes.data() + begin);
  });
}

template <class Code, class Kernel>
void DecodeInBlocks(const Format& format, std::span<const Code> codes, std::span<float> values,
                    Kernel kernel) {
  DLSIM_CHECK(values.size() == codes.size());
  DLSIM_CHECK(CodeBits(format) <= static_cast<int>(8 * sizeof(Code)));
  ParallelForBlocks(values.size(), [&](size_t begin, size_t count) {
    kernel(format, codes.data() + begin, count, values.data() + begin);
  });
}

}  // namespace

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint16_t> codes) {
  EncodeInBlocks(how, values, codes, [](auto... arguments) {
    HWY_DYNAMIC_DISPATCH(EncodeBlock16)(arguments...);
  });
}

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint32_t> codes) {
  EncodeInBlocks(how, values, codes, [](auto... arguments) {
    HWY_DYNAMIC_DISPATCH(EncodeBlock32)(arguments...);
  });
}

void DecodeArray(const Format& format, std::span<const uint16_t> codes, std::span<float> values) {
  DecodeInBlocks(format, codes, values, [](auto... arguments) {
    HWY_DYNAMIC_DISPATCH(DecodeBlock16)(arguments...);
  });
}

void DecodeArray(const Format& format, std::span<const uint32_t> codes, std::span<float> values) {
  DecodeInBlocks(format, codes, values, [](auto... arguments) {
    HWY_DYNAMIC_DISPATCH(DecodeBlock32)(arguments...);
  });
}

}  // namespace dlsim
#endif  // HWY_ONCE
