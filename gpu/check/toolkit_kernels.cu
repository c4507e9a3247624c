// SPDX-License-Identifier: Apache-2.0
// The CUDA Toolkit's conversions, for comparison.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/base/launch.h"
#include "gpu/check/bench_kernels.h"

namespace dlsim::gpu_check {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kValuesPerThread = 8;

enum class ToolkitFormat { kHalf, kBfloat16 };

template <ToolkitFormat kFormat>
__device__ uint32_t EncodePair(float low, float high) {
  uint16_t codes[2];
  if constexpr (kFormat == ToolkitFormat::kHalf) {
    codes[0] = __half_as_ushort(__float2half_rn(low));
    codes[1] = __half_as_ushort(__float2half_rn(high));
  } else {
    codes[0] = __bfloat16_as_ushort(__float2bfloat16_rn(low));
    codes[1] = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  }
  return codes[0] | static_cast<uint32_t>(codes[1]) << 16;
}

template <ToolkitFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    ToolkitKernel(const float4* values, uint4* codes, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float4 a = values[2 * i], b = values[2 * i + 1];
  codes[i] = {EncodePair<kFormat>(a.x, a.y), EncodePair<kFormat>(a.z, a.w),
              EncodePair<kFormat>(b.x, b.y), EncodePair<kFormat>(b.z, b.w)};
}

template <ToolkitFormat kFormat>
void ToolkitEncode(const float* values, uint64_t count, uint16_t* codes, gpu::Stream stream) {
  const uint64_t vectors = count / kValuesPerThread;
  gpu::Launch("ToolkitEncode", ToolkitKernel<kFormat>,
              {(vectors + kThreads - 1) / kThreads, kThreads}, stream,
              reinterpret_cast<const float4*>(values), reinterpret_cast<uint4*>(codes), vectors);
}

}  // namespace

std::vector<ToolkitConversion> ToolkitConversions() {
  return {{"__float2half_rn", ToolkitEncode<ToolkitFormat::kHalf>},
          {"__float2bfloat16_rn", ToolkitEncode<ToolkitFormat::kBfloat16>}};
}

}  // namespace dlsim::gpu_check
