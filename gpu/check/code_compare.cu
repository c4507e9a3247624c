// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/code_compare.h"

#include <algorithm>

#include "dlsim/gpu/convert.h"
#include "gpu/base/launch.h"
#include "gpu/check/input_order.h"

namespace dlsim::gpu_check {
namespace {

constexpr uint32_t kThreads = 256;

// Enough blocks to fill any device, and few enough to make the sums of threads worth while.
gpu::LaunchShape ShapeFor(uint64_t count) {
  constexpr uint64_t kMostBlocks = 16384;
  return {std::min(kMostBlocks, (count + kThreads - 1) / kThreads), kThreads};
}

__global__ void __launch_bounds__(kThreads)
    FillSweepKernel(uint64_t first, uint64_t count, uint32_t run_bits, float* values) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    values[i] = BitCast<float>(InputBits(static_cast<uint32_t>(first + i), run_bits));
  }
}

template <class Code>
__global__ void __launch_bounds__(kThreads)
    CompareCodesKernel(ArrayConversion how, const float* values, const Code* codes, uint64_t count,
                       Comparison* result) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const Rounding rounding = how.conversion.rounding;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  Comparison own;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint64_t position = how.first_index + i;
    const uint32_t random =
        rounding == Rounding::kStochastic ? RandomBits(how.random, position) : 0;
    const uint32_t expected = Encode(spec, rounding, BitCast<uint32_t>(values[i]), random).code;
    const uint32_t code = codes[i];
    own.hash += MixCode(static_cast<uint32_t>(position), code);
    if (code == expected) continue;
    if (own.mismatches == 0) own.first_mismatch = static_cast<uint32_t>(i);
    ++own.mismatches;
  }
  atomicAdd(&result->hash, own.hash);
  if (own.mismatches == 0) return;
  atomicAdd(&result->mismatches, own.mismatches);
  atomicMin(&result->first_mismatch, own.first_mismatch);
}

}  // namespace

void FillSweep(uint64_t first, uint64_t count, uint32_t run_bits, float* values,
               gpu::Stream stream) {
  gpu::Launch("FillSweep", FillSweepKernel, ShapeFor(count), stream, first, count, run_bits,
              values);
}

void CompareCodes(const ArrayConversion& how, const float* values, const void* codes,
                  uint64_t count, Comparison* result, gpu::Stream stream) {
  if (gpu::CodeBytes(how.conversion.format) == 2) {
    gpu::Launch("CompareCodes", CompareCodesKernel<uint16_t>, ShapeFor(count), stream, how, values,
                static_cast<const uint16_t*>(codes), count, result);
  } else {
    gpu::Launch("CompareCodes", CompareCodesKernel<uint32_t>, ShapeFor(count), stream, how, values,
                static_cast<const uint32_t*>(codes), count, result);
  }
}

}  // namespace dlsim::gpu_check
