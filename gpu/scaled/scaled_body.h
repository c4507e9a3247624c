// SPDX-License-Identifier: Apache-2.0
// What a thread does to encode a matrix to a scaled format, or to decode it; the same code for
// devices and, in tests, for the host. Threads work in teams, each on a group of elements that
// share a scale.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/base/device_code.h"
#include "gpu/base/load_value.h"
#include "src/scaled/group_scale.h"

namespace dlsim::gpu {

inline constexpr uint32_t kTeamBlock = 256;  // threads of a block, in teams of a power of two

// Groups of rows x columns elements side by side; the last of a line may be smaller.
struct MatrixGroups {
  uint64_t rows = 0, columns = 0;  // of the matrix
  uint64_t group_rows = 1, group_columns = 1;
  uint64_t across = 0, count = 0;  // groups in a line, and of the matrix
};

// A thread of a launch.
struct TeamThread {
  uint64_t block;
  uint32_t thread;

  // The group that its team works on, beyond the last if there is none.
  template <uint32_t kTeam>
  DLSIM_HOST_DEVICE uint64_t Group() const {
    return block * (kTeamBlock / kTeam) + thread / kTeam;
  }
};

// Calls body(index in memory) for a thread's share of its group.
template <uint32_t kTeam, class Body>
DLSIM_HOST_DEVICE inline void ForEachOfGroup(const MatrixGroups& groups, const TeamThread& thread,
                                             const Body& body) {
  const uint64_t group = thread.Group<kTeam>();
  if (group >= groups.count) return;
  const uint64_t row = group / groups.across * groups.group_rows;
  const uint64_t column = group % groups.across * groups.group_columns;
  const uint64_t rows_left = groups.rows - row, columns_left = groups.columns - column;
  const uint64_t rows = rows_left < groups.group_rows ? rows_left : groups.group_rows;
  const uint64_t columns =
      columns_left < groups.group_columns ? columns_left : groups.group_columns;
  const uint64_t first = row * groups.columns + column;
  DLSIM_NO_UNROLL
  for (uint64_t i = thread.thread % kTeam; i < rows * columns; i += kTeam) {
    const uint64_t down = rows == 1 ? 0 : i / columns;
    body(first + down * groups.columns + (i - down * columns));
  }
}

// Values of any type in memory.
struct MatrixValues {
  const std::byte* values = nullptr;
  DType dtype = DType::kF32;
  float inverse_grad_scale = 1.0f;
};

// Calls body(index, float32 bits) for a thread's share of the values of its group.
template <uint32_t kTeam, class Body>
DLSIM_HOST_DEVICE inline void ForEachValue(const MatrixGroups& groups, const TeamThread& thread,
                                           const MatrixValues& matrix, const Body& body) {
  DispatchDType(matrix.dtype, [&](auto tag) {
    constexpr DType kDType = decltype(tag)::value;
    const auto* const elements =
        reinterpret_cast<const typename ElementOf<kDType>::Type*>(matrix.values);
    ForEachOfGroup<kTeam>(groups, thread, [&](uint64_t i) {
      const uint32_t bits = BitCast<uint32_t>(ToFloat<kDType>(elements[i]));
      const float factor = matrix.inverse_grad_scale;
      body(i, factor == 1.0f ? bits : ScaleBits(bits, factor));
    });
  });
}

// Elements that a team of a whole block takes where all have one scale.
inline constexpr uint64_t kShare = 4096;

struct ScaledJob {
  MatrixGroups groups;
  CodecSpec element;
  GroupScales of_groups;
  uint8_t* codes;
  uint32_t* scales;  // by group, or one for all
  bool one_scale;
};

// Magnitude bits are ordered as magnitudes are; of NaN none is taken.
DLSIM_HOST_DEVICE inline uint32_t MagnitudeOf(uint32_t bits) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  return magnitude > codec::kInfinityBits ? 0 : magnitude;
}

inline MatrixGroups GroupsOf(const GroupSize& size, uint64_t rows, uint64_t columns) {
  MatrixGroups groups = {rows, columns, size.rows, size.columns};
  if (rows == 0 || columns == 0) return groups;
  groups.across = (columns + size.columns - 1) / size.columns;
  groups.count = groups.across * ((rows + size.rows - 1) / size.rows);
  return groups;
}

// All elements in order, in shares.
inline MatrixGroups SharesOf(uint64_t rows, uint64_t columns) {
  return GroupsOf({1, kShare}, 1, rows * columns);
}

// Calls body(team) with a team that suits the groups.
template <class Body>
inline void WithTeam(const MatrixGroups& groups, const Body& body) {
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

// Returns the largest magnitude in a thread's share of its group.
template <uint32_t kTeam>
DLSIM_HOST_DEVICE inline uint32_t LargestOfThread(const MatrixGroups& groups,
                                                  const TeamThread& thread,
                                                  const MatrixValues& matrix) {
  uint32_t largest = 0;
  ForEachValue<kTeam>(groups, thread, matrix, [&](uint64_t, uint32_t bits) {
    const uint32_t magnitude = MagnitudeOf(bits);
    largest = magnitude > largest ? magnitude : largest;
  });
  return largest;
}

// Turns the largest magnitude of a tensor into its scale.
DLSIM_HOST_DEVICE inline uint32_t ScaleOfTensor(GroupScales of_groups, ScaleType type,
                                                uint32_t largest) {
  of_groups.SetTensorScale(BitCast<float>(largest));
  return type == ScaleType::kFp8 ? BitCast<uint32_t>(of_groups.tensor_scale())
                                 : of_groups.Of(BitCast<float>(largest)).code;
}

// Encodes a thread's share of its group, whose largest magnitude is `largest_of_group`, unless all
// have one scale. `largest`: of the tensor, of ScaleType::kFp8.
template <uint32_t kTeam>
DLSIM_HOST_DEVICE inline void EncodeShare(ScaledJob job, const TeamThread& thread,
                                          const MatrixValues& matrix, const uint32_t* largest,
                                          uint32_t largest_of_group) {
  const uint64_t group = thread.Group<kTeam>();
  GroupScale scale;
  if (job.one_scale) {
    scale = job.of_groups.OfCode(job.scales[0]);
  } else {
    if (largest != nullptr) job.of_groups.SetTensorScale(BitCast<float>(*largest));
    scale = job.of_groups.Of(BitCast<float>(largest_of_group));
    if (group < job.groups.count && thread.thread % kTeam == 0) job.scales[group] = scale.code;
  }
  ForEachValue<kTeam>(job.groups, thread, matrix, [&](uint64_t i, uint32_t bits) {
    const uint32_t scaled = ScaleBits(bits, scale.encode);
    job.codes[i] =
        static_cast<uint8_t>(EncodeWith<Rounding::kNearestEven>(job.element, scaled, 0).code);
  });
}

// Decodes a thread's share of its group. `tensor_scale`: of ScaleType::kFp8.
template <uint32_t kTeam>
DLSIM_HOST_DEVICE inline void DecodeShare(ScaledJob job, const TeamThread& thread,
                                          const float* tensor_scale, float* values) {
  const uint64_t group = thread.Group<kTeam>();
  if (group >= job.groups.count) return;
  if (tensor_scale != nullptr) job.of_groups.set_tensor_scale(*tensor_scale);
  const GroupScale scale = job.of_groups.OfCode(job.scales[job.one_scale ? 0 : group]);
  ForEachOfGroup<kTeam>(job.groups, thread, [&](uint64_t i) {
    const uint32_t bits = Decode(job.element, job.codes[i]);
    values[i] = BitCast<float>(ScaleBits(bits, scale.decode));
  });
}

}  // namespace dlsim::gpu
