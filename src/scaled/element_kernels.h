// SPDX-License-Identifier: Apache-2.0
// What is done with the elements of scaled formats, compiled for each SIMD target: results are
// those of the scalar reference in dlsim/codec.h. Formats have subnormals, a bias below 127, at
// most 8 bits, and saturate; rounding is to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"

namespace dlsim {

inline CodecSpec MakeElementSpec(const Format& element) {
  return MakeCodecSpec({element, Rounding::kNearestEven, Overflow::kSaturate});
}

// Consecutive elements of a matrix, each with the factors of its group.
struct Stretch {
  size_t first = 0, count = 0;
  const float* encode = nullptr;  // multiply values before they are rounded
  const float* decode = nullptr;  // multiply elements
};

// Float32 bits of magnitudes are ordered as they are; of NaN none is taken.
//
// Raises each of largest[0, count) to the magnitude of the value there.
void RaiseEach(const float* values, size_t count, uint32_t* largest);
// Raises one for each `width` values, the last of which may be fewer.
void RaiseForGroups(const float* values, size_t count, size_t width, uint32_t* largest);

// values[0] and codes[0] belong to the first element of the stretch.
void EncodeElements(const CodecSpec& spec, const Stretch& stretch, const float* values,
                    uint8_t* codes);
void DecodeElements(const CodecSpec& spec, const Stretch& stretch, const uint8_t* codes,
                    float* values);

// What became of the elements of a stretch.
struct ElementCounts {
  bool finite = true;   // values, scaled values and results; else the rest means nothing
  size_t zeros = 0;     // values
  size_t vanished = 0;  // results that are zero, of any values
  size_t subnormal = 0;
  size_t clipped = 0;  // larger, scaled, than the largest of the format
  float absmax = 0;
};

// Encodes and decodes.
ElementCounts MeasureElements(const CodecSpec& spec, const Stretch& stretch, const float* values,
                              float* decoded);

}  // namespace dlsim
