// SPDX-License-Identifier: Apache-2.0
// Converts whole arrays between float32 and the codes of a format, on all threads and with the best
// SIMD instructions. Equal, bit for bit, to Encode and Decode of codec.h on each element.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/codec.h"

namespace dlsim {

// How to encode an array.
struct ArrayConversion {
  Conversion conversion;
  float scale = 1.0f;        // multiplies each value in float32 before encoding
  RandomStream random = {};  // for Rounding::kStochastic
  uint64_t first_index = 0;  // index of the first element in the random stream; a multiple of 8
};

// Encodes `values`. The 16-bit form is for formats of at most 16 bits, the 32-bit form for any.
// Throws Error (kUsage) if the spans differ in length.
void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint16_t> codes);
void EncodeArray(const ArrayConversion& how, std::span<const float> values,
                 std::span<uint32_t> codes);

// Decodes `codes`, exactly; signaling NaN codes become quiet. Bits above the code are ignored.
// Throws Error (kUsage) if the spans differ in length.
void DecodeArray(const Format& format, std::span<const uint16_t> codes, std::span<float> values);
void DecodeArray(const Format& format, std::span<const uint32_t> codes, std::span<float> values);

// Which SIMD instruction sets all kernels use; every target gives the same bits.

// Returns the names of all SIMD targets that this machine can run, best first, such as "AVX3".
std::vector<std::string> SupportedSimdTargets();

// Returns the name of the target that the kernels use now.
std::string CurrentSimdTarget();

// Makes all kernels use the named target from now on; empty = the best one. Throws Error (exit code
// 2) if the machine cannot run it. Not thread-safe.
void UseSimdTarget(std::string_view name);

}  // namespace dlsim
