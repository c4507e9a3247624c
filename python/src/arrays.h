// SPDX-License-Identifier: Apache-2.0
// What Python's arguments mean, for arrays of the host and of devices.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/measure.h"
#include "python/src/bindings.h"

namespace dlsim::python {

// Scale, seed and stream.
using Draws = std::tuple<double, uint64_t, uint32_t>;
using Question = std::pair<Conversion, double>;  // and its scale

// Names of element types are those of NumPy and ml_dtypes.

// Returns the type of float32, float64, float16 or bfloat16.
DType DTypeOfElement(const std::string& name);
Error BadElement(const std::string& place, const std::string& got);

// Returns the name of a type that dlsim knows as values or codes; empty for any other.
std::string ElementName(const nb::dlpack::dtype& dtype);
std::string UnknownElement(const nb::dlpack::dtype& dtype);

// Names are those of the dlsim command. Throws UsageError for another.
Conversion ConversionOf(const NamedFormat& format, const std::string& rounding,
                        const std::string& overflow, const std::string& subnormals);

// Throws UsageError unless the scale is a positive float32 number.
ArrayConversion ConversionOf(const Conversion& conversion, const Draws& draws);
std::vector<ArrayConversion> QuestionsOf(const std::vector<Question>& questions,
                                         const RandomStream& random);

// Returns the counters of each as a dictionary by name.
nb::list CountersOf(const std::vector<TensorStats>& stats);

// What the package does to whole arrays of any element type, on all threads.

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
                                         std::span<const ArrayConversion> questions);

enum class Unscale : bool { kNo, kYes };

// Encodes, decodes, and multiplies by the float32 reciprocal of the scale where that is asked for.
// `results` may be the memory of float32 `values`.
void QuantizeElements(const ArrayConversion& how, Unscale unscale, const Elements& values,
                      std::span<float> results);

}  // namespace dlsim::python
