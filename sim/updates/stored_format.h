// SPDX-License-Identifier: Apache-2.0
// What a float32 value becomes where it is stored: itself, or the nearest value of a format.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "dlsim/codec.h"
#include "dlsim/format.h"

namespace dlsim::sim {

// The format in which values are stored; nothing stands for float32.
using StoredFormat = std::optional<NamedFormat>;

inline float NearestIn(const CodecSpec& spec, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t code = EncodeWith<Rounding::kNearestEven>(spec, bits, 0).code;
  return std::bit_cast<float>(Decode(spec, code));
}

// Returns the nearest value, ties to even.
inline float StoredIn(const StoredFormat& format, float value) {
  return format ? NearestIn(MakeCodecSpec({format->format}), value) : value;
}

}  // namespace dlsim::sim
