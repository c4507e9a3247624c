// SPDX-License-Identifier: Apache-2.0
// Number formats: dlsim.Format.
#include "dlsim/format.h"

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "python/src/bindings.h"

namespace dlsim::python {
namespace {

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const FormatRow& row : kFormats) names.emplace_back(row.name);
  return names;
}

// Adds a property that is computed from the row of the format.
template <class Function>
void Computed(nb::class_<NamedFormat>& type, const char* name, Function function, const char* doc) {
  type.def_prop_ro(
      name, [function](const NamedFormat& self) { return function(self.format); }, doc);
}

}  // namespace

void BindFormats(nb::module_& module) {
  nb::class_<NamedFormat> type(
      module, "Format",
      "A binary floating-point format: 'fp16', 'bf16', 'cb16', another name of `dlsim formats`, or "
      "'eXmY'.");
  type.def(
          "__init__",
          [](NamedFormat* self, nb::object name) {
            // A dtype, or another Format. A text needs no module, which takes time to import.
            if (!nb::isinstance<nb::str>(name)) {
              name = nb::module_::import_("dlsim._values").attr("text_of")("Format", name);
            }
            new (self) NamedFormat(ParseFormat(nb::cast<std::string>(name)));
          },
          nb::arg("name"), nb::sig("def __init__(self, name: FormatName) -> None"))
      .def_ro("name", &NamedFormat::name, "Name as printed in results.")
      .def("__repr__", [](const NamedFormat& self) { return "dlsim.Format('" + self.name + "')"; })
      .def("__str__", [](const NamedFormat& self) { return self.name; })
      .def("__hash__", [](const NamedFormat& self) { return std::hash<std::string>()(self.name); })
      .def(
          "__eq__",
          [](const NamedFormat& self, const NamedFormat& other) {
            return self.name == other.name && self.format == other.format;
          },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def(
          "__reduce__",
          [](const NamedFormat& self) {
            return nb::make_tuple(nb::type<NamedFormat>(), nb::make_tuple(self.name));
          },
          nb::sig("def __reduce__(self) -> tuple[type[Format], tuple[str]]"));
  Computed(type, "bits", CodeBits, "Bits of a code.");
  Computed(
      type, "exponent_bits", [](const Format& f) { return f.exponent_bits; },
      "Bits of the exponent field.");
  Computed(
      type, "mantissa_bits", [](const Format& f) { return f.mantissa_bits; },
      "Explicit bits of the mantissa.");
  Computed(
      type, "bias", [](const Format& f) { return f.bias; },
      "A normal number is 2^(exponent field - bias) * 1.mantissa.");
  Computed(type, "has_infinity", HasInfinity, "Whether a code stands for infinity.");
  Computed(
      type, "has_subnormals", [](const Format& f) { return f.denormals == Denormals::kGradual; },
      "Whether codes below the smallest normal value stand for subnormals.");
  Computed(type, "max_finite", MaxFinite, "The largest finite value.");
  Computed(type, "min_normal", MinNormal, "The smallest positive normal value.");
  Computed(type, "min_positive", MinPositive, "The smallest positive value.");
  Computed(type, "overflow_threshold", OverflowThreshold,
           "Magnitudes from here on round to infinity (round to nearest even).");
  Computed(type, "max_code", MaxFiniteCode, "The code of `max_finite`.");
  Computed(type, "overflow_code", OverflowCode, "The code of +infinity; without one, of NaN.");
  Computed(type, "nan_code", QuietNanCode, "The code of the quiet NaN without payload.");
  module.def("format_names", FormatNames, "The names of the table of formats.");
}

}  // namespace dlsim::python
