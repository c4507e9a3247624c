// SPDX-License-Identifier: Apache-2.0
#include "dlsim/convert.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/cache_size.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/codec/stores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/codec/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/decode-inl.h"
#include "src/codec/dispatch.h"
#include "src/codec/encode-inl.h"

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(EncodeBlock16);
DLSIM_EXPORT(EncodeBlock32);
DLSIM_EXPORT(DecodeBlock16);
DLSIM_EXPORT(DecodeBlock32);

template <class Code, class Kernel>
void EncodeInBlocks(const ArrayConversion& how, std::span<const float> values,
                    std::span<Code> codes, const Kernel& kernel) {
  CheckLength("EncodeArray", "codes", values.size(), codes.size());
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
                    const Kernel& kernel) {
  CheckLength("DecodeArray", "values", codes.size(), values.size());
  DLSIM_CHECK(CodeBits(format) <= static_cast<int>(8 * sizeof(Code)));
  ParallelForBlocks(values.size(), [&](size_t begin, size_t count) {
    kernel(format, codes.data() + begin, count, values.data() + begin);
  });
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
  EncodeInBlocks(how, values, codes, [&](auto... arguments) {
    DLSIM_DISPATCH(EncodeBlock16)(stores, arguments...);
  });
}

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint16_t> codes) {
  EncodeArrayWith(StoresFor(codes.size_bytes()), how, values, codes);
}

void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint32_t> codes) {
  EncodeInBlocks(how, values, codes, [](auto... arguments) {
    DLSIM_DISPATCH(EncodeBlock32)(arguments...);
  });
}

void DecodeArrayWith(Stores stores, const Format& format, std::span<const uint16_t> codes,
                     std::span<float> values) {
  DecodeInBlocks(format, codes, values, [&](auto... arguments) {
    DLSIM_DISPATCH(DecodeBlock16)(stores, arguments...);
  });
}

void DecodeArray(const Format& format, std::span<const uint16_t> codes, std::span<float> values) {
  DecodeArrayWith(StoresFor(values.size_bytes()), format, codes, values);
}

void DecodeArray(const Format& format, std::span<const uint32_t> codes, std::span<float> values) {
  DecodeInBlocks(format, codes, values, [](auto... arguments) {
    DLSIM_DISPATCH(DecodeBlock32)(arguments...);
  });
}

}  // namespace dlsim
#endif  // HWY_ONCE
