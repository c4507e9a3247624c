// SPDX-License-Identifier: Apache-2.0
// Converts matrices in device memory to scaled formats and back. Equal, bit for bit, to
// EncodeScaled and DecodeScaled of scaled_codec.h on the CPU. Calls only launch on the stream: they
// neither allocate nor wait, and can be captured in a CUDA graph.
#pragma once

#include <cstdint>
#include <optional>

#include "dlsim/dtype.h"
#include "dlsim/gpu/stream.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"

namespace dlsim::gpu {

// rows x columns values, row by row, in device memory that the caller owns.
struct DeviceMatrix {
  const void* values = nullptr;  // aligned to its element size; null only if there are no elements
  uint64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  float grad_scale = 1.0f;  // values are multiplied by its float32 reciprocal unless it is 1
};

// What a matrix becomes; see ScaledCodes. Device memory that the caller owns.
struct DeviceScaledCodes {
  uint8_t* codes = nullptr;       // one for each element
  uint32_t* scales = nullptr;     // CountScales() of them
  float* tensor_scale = nullptr;  // of ScaleType::kFp8 only
};

// Returns how many scales a matrix has.
uint64_t CountScales(const ScaledFormat& format, uint64_t rows, uint64_t columns, BlockAxis axis);

// Encodes a matrix; `scale` as EncodeScaled has it. Throws Error naming the call if an argument is
// wrong or a launch fails.
void EncodeScaled(const ScaledFormat& format, const Format& element, const DeviceMatrix& matrix,
                  BlockAxis axis, const DeviceScaledCodes& codes, Stream stream,
                  std::optional<float> scale = std::nullopt);

// Decodes what EncodeScaled made of a matrix of this shape to as many float32 `values`.
void DecodeScaled(const ScaledFormat& format, const Format& element, const DeviceScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, float* values, Stream stream);

}  // namespace dlsim::gpu
