// SPDX-License-Identifier: Apache-2.0
// Elements of arrays, and what the CPU makes of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "gpu/base/device_code.h"
#include "src/measure/step_blocks.h"

namespace dlsim::gpu {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

// Elements of all kinds: of each exponent and sign, among them NaN with payloads, infinities,
// zeros and subnormals.
inline std::vector<std::byte> Elements(DType dtype, size_t count, uint32_t salt) {
  std::vector<std::byte> bytes(count * DTypeSize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t mixed = (i + salt + 1) * 0x9E3779B97F4A7C15u;
    uint64_t element = mixed ^ (mixed >> 29);
    if (dtype == DType::kF64 && i % 4 != 0) {
      // Exponents that float32 has; and NaN, of which there would be few.
      const double value = std::bit_cast<float>(static_cast<uint32_t>(element >> 16));
      element = std::bit_cast<uint64_t>(value) ^ (element & 0xFFFFFFF);
    }
    std::memcpy(&bytes[i * DTypeSize(dtype)], &element, DTypeSize(dtype));
  }
  return bytes;
}

// Returns the elements as the CPU reads them.
inline std::vector<float> FloatsOf(DType dtype, float grad_scale,
                                   const std::vector<std::byte>& elements) {
  const size_t count = elements.size() / DTypeSize(dtype);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i += kChunkElements) {
    const size_t length = std::min(kChunkElements, count - i);
    LoadFloats(dtype, &elements[i * DTypeSize(dtype)], grad_scale,
               std::span(values).subspan(i, length));
  }
  return values;
}

// What the CPU makes of it.
template <class Code>
std::vector<Code> OnCpu(const ArrayConversion& how, DType dtype, float grad_scale,
                        const std::vector<std::byte>& elements) {
  const std::vector<float> values = FloatsOf(dtype, grad_scale, elements);
  std::vector<Code> codes(values.size());
  EncodeArray(how, values, std::span<Code>(codes));
  return codes;
}

// Cuts `elements` of the tensor that `whole` is the beginning of, and appends the pieces.
inline void AppendPieces(const Piece& whole, uint64_t elements, std::vector<Piece>& pieces) {
  for (uint64_t begin = 0; begin < elements; begin += kBlockElements) {
    Piece& piece = pieces.emplace_back(whole);
    piece.values += begin * DTypeSize(whole.dtype);
    piece.count = static_cast<uint32_t>(std::min<uint64_t>(kBlockElements, elements - begin));
  }
}

}  // namespace dlsim::gpu
