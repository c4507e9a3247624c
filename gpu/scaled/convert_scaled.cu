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
#include "gpu/scaled/matrix_groups.cuh"
#include "src/scaled/element_kernels.h"
#include "src/scaled/group_scale.h"

namespace dlsim::gpu {
namespace {

constexpr std::string_view kEncodeScaledCall = "dlsim::gpu::EncodeScaled";
constexpr std::string_view kDecodeScaledCall = "dlsim::gpu::DecodeScaled";

// Elements that a team of a whole block takes where all have one scale.
constexpr uint64_t kShare = 4096;

struct ScaledJob {
  MatrixGroups groups;
  CodecSpec element;
  GroupScales of_groups;
  uint8_t* codes;
  uint32_t* scales;  // by group, or one for all
  bool one_scale;
};

// Magnitude bits are ordered as magnitudes are; of NaN none is taken.
__device__ uint32_t MagnitudeOf(uint32_t bits) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  return magnitude > codec::kInfinityBits ? 0 : magnitude;
}

template <uint32_t kTeam>
__device__ uint32_t LargestOfGroup(const MatrixGroups& groups, uint64_t group,
                                   const MatrixValues& matrix) {
  uint32_t largest = 0;
  ForEachValue<kTeam>(groups, group, matrix, [&](uint64_t, uint32_t bits) {
    const uint32_t magnitude = MagnitudeOf(bits);
    largest = magnitude > largest ? magnitude : largest;
  });
  return LargestOfTeam<kTeam>(largest);
}

// Raises *largest to that of all values.
__global__ void __launch_bounds__(kTeamBlock)
    LargestKernel(MatrixGroups shares, MatrixValues matrix, uint32_t* largest) {
  const uint32_t of_share = LargestOfGroup<kTeamBlock>(shares, GroupOfTeam<kTeamBlock>(), matrix);
  if (threadIdx.x == 0) atomicMax(largest, of_share);
}

// Turns the largest magnitude of a tensor into its scale.
__global__ void ScaleKernel(GroupScales of_groups, ScaleType type, uint32_t* word) {
  const float largest = BitCast<float>(*word);
  of_groups.SetTensorScale(largest);
  *word = type == ScaleType::kFp8 ? BitCast<uint32_t>(of_groups.tensor_scale())
                                  : of_groups.Of(largest).code;
}

__global__ void StoreKernel(float scale, uint32_t* word) { *word = BitCast<uint32_t>(scale); }

// `largest`: of the tensor, of ScaleType::kFp8.
template <uint32_t kTeam>
__global__ void __launch_bounds__(kTeamBlock)
    EncodeScaledKernel(ScaledJob job, MatrixValues matrix, const uint32_t* largest) {
  const uint64_t group = GroupOfTeam<kTeam>();
  GroupScale scale;
  if (job.one_scale) {
    scale = job.of_groups.OfCode(job.scales[0]);
  } else {
    if (largest != nullptr) job.of_groups.SetTensorScale(BitCast<float>(*largest));
    const uint32_t of_group = LargestOfGroup<kTeam>(job.groups, group, matrix);
    scale = job.of_groups.Of(BitCast<float>(of_group));
    if (group < job.groups.count && threadIdx.x % kTeam == 0) job.scales[group] = scale.code;
  }
  ForEachValue<kTeam>(job.groups, group, matrix, [&](uint64_t i, uint32_t bits) {
    const uint32_t scaled = ScaleBits(bits, scale.encode);
    job.codes[i] =
        static_cast<uint8_t>(EncodeWith<Rounding::kNearestEven>(job.element, scaled, 0).code);
  });
}

template <uint32_t kTeam>
__global__ void __launch_bounds__(kTeamBlock)
    DecodeScaledKernel(ScaledJob job, const float* tensor_scale, float* values) {
  const uint64_t group = GroupOfTeam<kTeam>();
  if (group >= job.groups.count) return;
  if (tensor_scale != nullptr) job.of_groups.set_tensor_scale(*tensor_scale);
  const GroupScale scale = job.of_groups.OfCode(job.scales[job.one_scale ? 0 : group]);
  ForEachOfGroup<kTeam>(job.groups, group, [&](uint64_t i) {
    const uint32_t bits = Decode(job.element, job.codes[i]);
    values[i] = BitCast<float>(ScaleBits(bits, scale.decode));
  });
}

MatrixGroups GroupsOf(const GroupSize& size, uint64_t rows, uint64_t columns) {
  MatrixGroups groups = {rows, columns, size.rows, size.columns};
  if (rows == 0 || columns == 0) return groups;
  groups.across = (columns + size.columns - 1) / size.columns;
  groups.count = groups.across * ((rows + size.rows - 1) / size.rows);
  return groups;
}

// All elements in order, in shares.
MatrixGroups SharesOf(uint64_t rows, uint64_t columns) {
  return GroupsOf({1, kShare}, 1, rows * columns);
}

// Calls body(team) with a team that suits the groups.
template <class Body>
void WithTeam(const MatrixGroups& groups, const Body& body) {
  constexpr uint64_t kFewColumns = 32;
  const auto with = [&]<uint32_t kTeam>() { body(std::integral_constant<uint32_t, kTeam>()); };
  if (groups.group_columns == 1) {
    with.template operator()<1>();
  } else if (groups.group_rows > 1 || groups.group_columns == kShare) {
    with.template operator()<kTeamBlock>();
  } else if (groups.group_columns <= kFewColumns) {
    with.template operator()<8>();
  } else {
    with.template operator()<32>();
  }
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
