// SPDX-License-Identifier: Apache-2.0
// The arguments of the encoding kernel, and its launchers: one file for each format known at
// compile time, and one for all others.
#pragma once

#include <cstdint>
#include <string_view>

#include "dlsim/convert.h"
#include "dlsim/gpu/stream.h"
#include "gpu/base/piece.h"

namespace dlsim::gpu {

// The elements of one tensor, or of the pieces of a list.
struct EncodeJob {
  const Piece* pieces = nullptr;  // on the device; null = `tensor`
  uint64_t piece_count = 0;
  Piece tensor = {};  // but for its count, which is
  uint64_t elements = 0;
  float scale = 1.0f;
  uint64_t seed = 0;         // of the random streams of pieces
  uint64_t first_index = 0;  // added to theirs
};

// In errors of launches.
inline constexpr std::string_view kEncodeCall = "dlsim::gpu::Encode";
inline constexpr std::string_view kDecodeCall = "dlsim::gpu::Decode";

template <Format kFormat>
void LaunchEncodeTo(const EncodeJob& job, const Conversion& conversion, Stream stream);
void LaunchEncodeToAny(const EncodeJob& job, const Conversion& conversion, Stream stream);

}  // namespace dlsim::gpu
