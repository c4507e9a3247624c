// SPDX-License-Identifier: Apache-2.0
// What Python's arguments mean, for arrays of the host and of devices.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/dtype.h"
#include "dlsim/error.h"
#include "dlsim/measure.h"

namespace dlsim::python {

// Scale, seed and stream.
using Draws = std::tuple<double, uint64_t, uint32_t>;
using Question = std::pair<Conversion, double>;  // and its scale

// Names of element types are those of NumPy and ml_dtypes.

// Returns the type of float32, float64, float16 or bfloat16.
DType DTypeOfElement(const std::string& name);
Error BadElement(const std::string& place, const std::string& got);

// Returns the name of a type that dlsim knows as values or codes; empty for any other.
std::string ElementName(const nanobind::dlpack::dtype& dtype);
std::string UnknownElement(const nanobind::dlpack::dtype& dtype);

// Names are those of the dlsim command. Throws UsageError for another.
Conversion ConversionOf(const NamedFormat& format, const std::string& rounding,
                        const std::string& overflow, const std::string& subnormals);

// Throws UsageError unless the scale is a positive float32 number.
ArrayConversion ConversionOf(const Conversion& conversion, const Draws& draws);
std::vector<Measurement> QuestionsOf(const std::vector<Question>& questions,
                                     const RandomStream& random);

// Returns the counters of each as a dictionary by name.
nanobind::list CountersOf(const std::vector<TensorStats>& stats);

}  // namespace dlsim::python
