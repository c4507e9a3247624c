// SPDX-License-Identifier: Apache-2.0
// What the package does to whole arrays of any element type, on all threads.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/dtype.h"
#include "dlsim/measure.h"

namespace dlsim::python {

// Floating-point elements in memory, aligned to their size.
struct Elements {
  const std::byte* data;
  size_t count;
  DType dtype;
};

// Codes in memory, aligned to their size of 1, 2 or 4 bytes.
template <class Byte>
struct CodesOf {
  Byte* data;
  size_t count;
  size_t bytes;  // of one code
};

// Each result is that of EncodeArray or DecodeArray for the elements as float32 (F64
// rounds to nearest even). Counts are equal, and codes are wide enough for the format.
void EncodeElements(const ArrayConversion& how, const Elements& values,
                    const CodesOf<std::byte>& codes);
void DecodeElements(const Format& format, const CodesOf<const std::byte>& codes,
                    std::span<float> values);

// Returns the elements as float32, divided by `grad_scale`: where they are, or in `room`.
std::span<const float> FloatsOf(const Elements& values, float grad_scale, std::vector<float>& room);

// Each sum is the exact one, rounded once, where a table tells it; see docs/numerics.md.
std::vector<TensorStats> MeasureElements(const Elements& values,
                                         std::span<const Measurement> questions);

enum class Unscale : bool { kNo, kYes };

// Encodes, decodes, and multiplies by the float32 reciprocal of the scale where that is asked for.
// `results` may be the memory of float32 `values`.
void QuantizeElements(const ArrayConversion& how, Unscale unscale, const Elements& values,
                      std::span<float> results);

}  // namespace dlsim::python
