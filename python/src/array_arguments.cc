// SPDX-License-Identifier: Apache-2.0
#include "python/src/array_arguments.h"

#include <array>
#include <limits>
#include <span>
#include <string_view>

#include "sim/base/quantity.h"
#include "sim/base/suggest.h"

namespace nb = nanobind;

namespace dlsim::python {

using namespace sim;

namespace {

// As numpy has them.
constexpr std::array<EnumName<DType>, 4> kDTypes = {{{DType::kF32, "float32"},
                                                     {DType::kF64, "float64"},
                                                     {DType::kF16, "float16"},
                                                     {DType::kBF16, "bfloat16"}}};

struct Element {
  nb::dlpack::dtype_code code;
  uint8_t bits;
  std::string_view name;
};

using Code = nb::dlpack::dtype_code;
constexpr std::array<Element, 14> kElements = {{{Code::Float, 32, "float32"},
                                                {Code::Float, 64, "float64"},
                                                {Code::Float, 16, "float16"},
                                                {Code::Bfloat, 16, "bfloat16"},
                                                {Code::UInt, 8, "uint8"},
                                                {Code::UInt, 16, "uint16"},
                                                {Code::UInt, 32, "uint32"},
                                                {Code::Int, 8, "int8"},
                                                {Code::Int, 16, "int16"},
                                                {Code::Int, 32, "int32"},
                                                {Code::Float8_E3M4, 8, "float8_e3m4"},
                                                {Code::Float8_E4M3, 8, "float8_e4m3"},
                                                {Code::Float8_E4M3FN, 8, "float8_e4m3fn"},
                                                {Code::Float8_E5M2, 8, "float8_e5m2"}}};

// As the command's --scale.
float ScaleOf(double scale) {
  const bool in_range = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (in_range && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError("scale", "out of range", "a positive float32 number", PythonRepr(scale));
}

}  // namespace

DType DTypeOfElement(const std::string& name) {
  std::vector<std::string_view> names;
  for (const EnumName<DType>& known : kDTypes) names.push_back(known.name);
  return kDTypes[ParseChoice("values", name, names)].value;
}

Error BadElement(const std::string& place, const std::string& got) {
  return UsageError(place, "bad element type", "one of the size of the elements", got);
}

std::string ElementName(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return "";
  for (const Element& element : kElements) {
    if (static_cast<uint8_t>(element.code) == dtype.code && element.bits == dtype.bits) {
      return std::string(element.name);
    }
  }
  return "";
}

std::string UnknownElement(const nb::dlpack::dtype& dtype) {
  return "DLPack type " + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) +
         " bits and " + std::to_string(dtype.lanes) + " lanes";
}

Conversion ConversionOf(const NamedFormat& format, const std::string& rounding,
                        const std::string& overflow, const std::string& subnormals) {
  return {format.format, ParseNamed<Rounding>("rounding", rounding),
          ParseNamed<Overflow>("overflow", overflow),
          ParseNamed<Subnormals>("subnormals", subnormals)};
}

ArrayConversion ConversionOf(const Conversion& conversion, const Draws& draws) {
  const auto& [scale, seed, stream] = draws;
  return {conversion, ScaleOf(scale), {seed, stream}, 0};
}

std::vector<Measurement> QuestionsOf(const std::vector<Question>& questions,
                                     const RandomStream& random) {
  std::vector<Measurement> result;
  for (const auto& [conversion, scale] : questions) {
    result.push_back({conversion, ScaleOf(scale), random});
  }
  return result;
}

nb::list CountersOf(const std::vector<TensorStats>& stats) {
  nb::list result;
  for (const TensorStats& of_question : stats) {
    nb::dict counters;
    ForEachCounter([&](auto row) {
      if constexpr (row.kIsMember) counters[row.kRow.name] = of_question.*row.kRow.of;
    });
    result.append(counters);
  }
  return result;
}

}  // namespace dlsim::python
