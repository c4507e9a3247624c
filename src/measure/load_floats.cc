// SPDX-License-Identifier: Apache-2.0
#include "src/measure/load_floats.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "src/base/check.h"

namespace dlsim {
namespace {

// Copies elements of type T to an aligned buffer first: the bytes may be misaligned.
template <class T, class Convert>
void LoadAs(const std::byte* from, std::span<float> out, const Convert& convert) {
  std::array<T, kChunkElements> buffer;
  DLSIM_CHECK(out.size() <= buffer.size());
  std::memcpy(buffer.data(), from, out.size_bytes() / sizeof(float) * sizeof(T));
  convert(std::span<const T>(buffer.data(), out.size()));
}

}  // namespace

void LoadFloats(DType dtype, const std::byte* from, float grad_scale, std::span<float> out) {
  if (out.empty()) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), from, out.size_bytes());
      break;
    case DType::kF64:
      LoadAs<double>(from, out, [&](std::span<const double> values) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(values[i]);
      });
      break;
    case DType::kF16:
    case DType::kBF16:
      LoadAs<uint16_t>(from, out, [&](std::span<const uint16_t> codes) {
        DecodeArray(dtype == DType::kF16 ? kFp16 : kBf16, codes, out);
      });
      break;
  }
  if (grad_scale == 1.0f) return;
  const float inverse = 1.0f / grad_scale;
  for (float& value : out) value *= inverse;
}

}  // namespace dlsim
