// SPDX-License-Identifier: Apache-2.0
// A team finds the largest magnitude of its group and encodes it: what it reads twice is in the
// cache the second time. A scale of the whole tensor takes one pass more before.
#include <cuda_runtime.h>

#include <string_view>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "dlsim/gpu/scaled.h"
#include "gpu/base/launch.h"
#include "gpu/base/pointers.h"
#include "gpu/scaled/scaled_body.h"
#include "src/scaled/element_kernels.h"

namespace dlsim::gpu {
namespace {

constexpr std::string_view kEncodeScaledCall = "dlsim::gpu::EncodeScaled";
constexpr std::string_view kDecodeScaledCall = "dlsim::gpu::DecodeScaled";

// Returns the largest number that a thread of the team has, to all of them.
template <uint32_t kTeam>
__device__ uint32_t LargestOfTeam(uint32_t number) {
  constexpr uint32_t kLanes = kTeam < 32 ? kTeam : 32;
  DLSIM_UNROLL
  for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, number, static_cast<int>(step));
    number = other > number ? other : number;
  }
  if constexpr (kTeam == kTeamBlock) {
    __shared__ uint32_t of_block;
    if (threadIdx.x == 0) of_block = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicMax(&of_block, number);
    __syncthreads();
    number = of_block;
  }
  return number;
}

// Raises *largest to that of all values.
__global__ void __launch_bounds__(kTeamBlock)
    LargestKernel(MatrixGroups shares, MatrixValues matrix, uint32_t* largest) {
  const TeamThread thread = {blockIdx.x, threadIdx.x};
  const uint32_t of_share =
      LargestOfTeam<kTeamBlock>(LargestOfThread<kTeamBlock>(shares, thread, matrix));
  if (threadIdx.x == 0) atomicMax(largest, of_share);
}

__global__ void ScaleKernel(GroupScales of_groups, ScaleType type, uint32_t* word) {
  *word = ScaleOfTensor(of_groups, type, *word);
}

__global__ void StoreKernel(float scale, uint32_t* word) { *word = BitCast<uint32_t>(scale); }

template <uint32_t kTeam>
__global__ void __launch_bounds__(kTeamBlock)
    EncodeScaledKernel(ScaledJob job, MatrixValues matrix, const uint32_t* largest) {
  const TeamThread thread = {blockIdx.x, threadIdx.x};
  uint32_t of_group = 0;
  if (!job.one_scale) {
    of_group = LargestOfTeam<kTeam>(LargestOfThread<kTeam>(job.groups, thread, matrix));
  }
  EncodeShare<kTeam>(job, thread, matrix, largest, of_group);
}

template <uint32_t kTeam>
__global__ void __launch_bounds__(kTeamBlock)
    DecodeScaledKernel(ScaledJob job, const float* tensor_scale, float* values) {
  DecodeShare<kTeam>(job, {blockIdx.x, threadIdx.x}, tensor_scale, values);
}

LaunchShape ShapeOf(const MatrixGroups& groups, uint32_t team) {
  return {(groups.count * team + kTeamBlock - 1) / kTeamBlock, kTeamBlock};
}

ScaledJob JobOf(std::string_view call, const ScaledFormat& format, const Format& element,
                const DeviceScaledCodes& codes, uint64_t rows, uint64_t columns, BlockAxis axis) {
  if (axis == BlockAxis::kBoth && format.sharing != Sharing::kBlock) {
    throw UsageError(call, "square blocks of a format without blocks");
  }
  CheckCurrentDevice(call, CheckPointer(call, "codes", codes.codes, 1));
  CheckCurrentDevice(call, CheckPointer(call, "scales", codes.scales, sizeof(uint32_t)));
  if (format.scale == ScaleType::kFp8) {
    CheckCurrentDevice(call, CheckPointer(call, "tensor_scale", codes.tensor_scale, sizeof(float)));
  }
  const bool one_scale = format.sharing == Sharing::kTensor;
  return {one_scale ? SharesOf(rows, columns)
                    : GroupsOf(GroupSizeOf(format, rows, columns, axis), rows, columns),
          MakeElementSpec(element),
          GroupScales(format, element),
          codes.codes,
          codes.scales,
          one_scale};
}

// Puts the bits of the largest magnitude into `word`.
void LaunchLargest(const MatrixGroups& shares, const MatrixValues& matrix, uint32_t* word,
                   Stream stream) {
  CheckCuda(cudaMemsetAsync(word, 0, sizeof(*word), stream), kEncodeScaledCall);
  Launch(kEncodeScaledCall, LargestKernel, ShapeOf(shares, kTeamBlock), stream, shares, matrix,
         word);
}

void LaunchScale(const ScaledJob& job, ScaleType type, uint32_t* word, Stream stream) {
  Launch(kEncodeScaledCall, ScaleKernel, {1, 1}, stream, job.of_groups, type, word);
}

}  // namespace

uint64_t CountScales(const ScaledFormat& format, uint64_t rows, uint64_t columns, BlockAxis axis) {
  return GroupsOf(GroupSizeOf(format, rows, columns, axis), rows, columns).count;
}

void EncodeScaled(const ScaledFormat& format, const Format& element, const DeviceMatrix& matrix,
                  BlockAxis axis, const DeviceScaledCodes& codes, Stream stream,
                  std::optional<float> scale) {
  if (matrix.rows == 0 || matrix.columns == 0) return;
  const ScaledJob job =
      JobOf(kEncodeScaledCall, format, element, codes, matrix.rows, matrix.columns, axis);
  CheckCurrentDevice(kEncodeScaledCall, CheckPointer(kEncodeScaledCall, "values", matrix.values,
                                                     DTypeSize(matrix.dtype)));
  const MatrixValues values = {static_cast<const std::byte*>(matrix.values), matrix.dtype,
                               matrix.grad_scale == 1.0f ? 1.0f : 1.0f / matrix.grad_scale};
  const MatrixGroups shares = SharesOf(matrix.rows, matrix.columns);
  uint32_t* largest = nullptr;  // of the tensor, until its scale is known
  if (format.scale == ScaleType::kFp8) {
    largest = reinterpret_cast<uint32_t*>(codes.tensor_scale);
    LaunchLargest(shares, values, largest, stream);
  } else if (scale) {
    Launch(kEncodeScaledCall, StoreKernel, {1, 1}, stream, *scale, codes.scales);
  } else if (job.one_scale) {
    LaunchLargest(shares, values, codes.scales, stream);
    LaunchScale(job, format.scale, codes.scales, stream);
  }
  WithTeam(job.groups, [&](auto team) {
    Launch(kEncodeScaledCall, EncodeScaledKernel<decltype(team)::value>, ShapeOf(job.groups, team),
           stream, job, values, largest);
  });
  if (largest != nullptr) LaunchScale(job, format.scale, largest, stream);
}

void DecodeScaled(const ScaledFormat& format, const Format& element, const DeviceScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, float* values, Stream stream) {
  if (rows == 0 || columns == 0) return;
  const ScaledJob job = JobOf(kDecodeScaledCall, format, element, codes, rows, columns, axis);
  CheckCurrentDevice(kDecodeScaledCall,
                     CheckPointer(kDecodeScaledCall, "values", values, sizeof(float)));
  const float* const tensor_scale = format.scale == ScaleType::kFp8 ? codes.tensor_scale : nullptr;
  WithTeam(job.groups, [&](auto team) {
    Launch(kDecodeScaledCall, DecodeScaledKernel<decltype(team)::value>, ShapeOf(job.groups, team),
           stream, job, tensor_scale, values);
  });
}

}  // namespace dlsim::gpu
