// SPDX-License-Identifier: Apache-2.0
// The kernels that are no part of dlsim: random data, the limit of reading, the toolkit's own
// conversions.
#pragma once

#include <cstdint>
#include <vector>

#include "dlsim/gpu/stream.h"

namespace dlsim::gpu_check {

// kNormal: N(0,1). kGrad: N(0,1) * 2^U{-36..3}, of which fp16 makes a third subnormal or zero.
enum class DataSet : uint8_t { kNormal, kGrad };

// Draws values of a data set on the device.
void DrawOnDevice(DataSet data, uint64_t seed, float* values, uint64_t count, gpu::Stream stream);

// Reads `count` values, a multiple of 4, from memory aligned to 16 bytes; what it finds goes to
// *result only if it is a number that it hardly ever is.
void ReadValues(const float* values, uint64_t count, uint32_t* result, gpu::Stream stream);

// A conversion of the CUDA Toolkit in a loop of its own, 8 values per thread in whole vectors.
struct ToolkitConversion {
  const char* name;
  // `count` is a multiple of 8, memory is aligned to 16 bytes.
  void (*encode)(const float* values, uint64_t count, uint16_t* codes, gpu::Stream stream);
};

// __float2half_rn and __float2bfloat16_rn; none on an emulated device.
std::vector<ToolkitConversion> ToolkitConversions();

}  // namespace dlsim::gpu_check
