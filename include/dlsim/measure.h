// SPDX-License-Identifier: Apache-2.0
// Measures what a conversion would do to an array, without storing any code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/tensor_stats.h"

namespace dlsim {

// The order of float64 sums: element i of a chunk of 4096 adds to lane i mod 32, the lanes are
// added pairwise (l and l + 16, then l and l + 8, ...), chunks are added in index order within a
// block of 65536 elements (256 KiB of float32), and blocks in index order.
inline constexpr size_t kSumLanes = 32;
inline constexpr size_t kChunkElements = 4096;
inline constexpr size_t kBlockElements = size_t{1} << 16;

// Measures what encoding an array, decoding it and unscaling it by the float32 reciprocal of the
// scale would do, on all threads.
TensorStats Measure(std::span<const float> values, const ArrayConversion& question);

// Answers several questions in one pass over the array; one result per question.
std::vector<TensorStats> Measure(std::span<const float> values,
                                 std::span<const ArrayConversion> questions);

}  // namespace dlsim
