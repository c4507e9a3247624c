// SPDX-License-Identifier: Apache-2.0
// Formats with scales of their own: what dlsim.arrays calls with C-contiguous float32 matrices.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "sim/scaled/scaled.h"

namespace dlsim::python {
namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A scaled format for one side of the training.
struct Side {
  ScaledFormat format;
  bool backward = false;

  const Format& element() const { return backward ? format.backward : format.forward; }
};

MatrixView ViewOf(const Matrix& matrix) {
  return {{matrix.data(), matrix.size()}, matrix.shape(0), matrix.shape(1)};
}

BlockAxis AxisOf(const std::string& name) {
  return name == "row" ? BlockAxis::kRow : name == "column" ? BlockAxis::kColumn : BlockAxis::kBoth;
}

template <class T>
nb::object ArrayOf(const std::vector<T>& values) {
  auto* const held = new std::vector<T>(values);
  const nb::capsule owner(held,
                          [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

nb::tuple EncodeMatrix(const Matrix& matrix, const Side& side, const std::string& axis,
                       std::optional<float> scale) {
  ScaledCodes codes;
  {
    const nb::gil_scoped_release release;
    codes = EncodeScaled(side.format, side.element(), ViewOf(matrix), AxisOf(axis), scale);
  }
  return nb::make_tuple(ArrayOf(codes.codes), ArrayOf(codes.scales), codes.tensor_scale);
}

void DecodeMatrix(const Codes& codes, const std::vector<uint32_t>& scales, float tensor_scale,
                  const Side& side, const std::string& axis, const Output& values) {
  ScaledCodes held;
  held.codes.assign(codes.data(), codes.data() + codes.size());
  held.scales = scales;
  held.tensor_scale = tensor_scale;
  const nb::gil_scoped_release release;
  DecodeScaled(side.format, side.element(), held, codes.shape(0), codes.shape(1), AxisOf(axis),
               {values.data(), values.size()});
}

nb::dict MeasureMatrix(const Matrix& matrix, const Side& side, const std::string& axis, bool rows,
                       std::optional<float> scale) {
  ScaledStats found;
  {
    const nb::gil_scoped_release release;
    found = MeasureScaled(side.format, side.element(), ViewOf(matrix), AxisOf(axis),
                          rows ? MatrixChannels::kRows : MatrixChannels::kColumns, scale);
  }
  nb::dict object;
  object["stats"] = CountersOf({found.stats})[0];
  object["mean_channel_harm"] = found.mean_channel_harm;
  object["worst_channel_harm"] = found.worst_channel_harm;
  object["min_scale"] = found.min_scale;
  object["max_scale"] = found.max_scale;
  return object;
}

// The scales that are used at steps with these largest magnitudes.
std::vector<float> DelayedScales(const std::vector<float>& largest, const Side& side) {
  sim::DelayedScale delayed(side.format, side.element());
  std::vector<float> scales;
  for (const float value : largest) {
    scales.push_back(delayed.scale());
    delayed.Advance(value);
  }
  return scales;
}

}  // namespace

void BindScaled(nb::module_& module) {
  nb::class_<Side>(module, "ScaledSide", "A scaled format for one side of the training.")
      .def(
          "__init__",
          [](Side* self, const std::string& text, bool backward) {
            new (self) Side{ParseScaledFormat(text).format, backward};
          },
          nb::arg("format"), nb::arg("backward"))
      .def_prop_ro("scale_type",
                   [](const Side& side) { return std::string(NameOf(side.format.scale)); })
      .def_prop_ro("sharing",
                   [](const Side& side) { return std::string(NameOf(side.format.sharing)); })
      .def_prop_ro("block", [](const Side& side) { return side.format.block; })
      .def_prop_ro("delayed", [](const Side& side) { return side.format.delayed.has_value(); });
  module.def("scaled_format_names", [] {
    std::vector<std::string> names;
    for (const ScaledFormat& row : kScaledFormats) names.emplace_back(row.name);
    return names;
  });
  module.def("encode_scaled", &EncodeMatrix, nb::arg("matrix").noconvert(), nb::arg("side"),
             nb::arg("axis"), nb::arg("scale").none(),
             nb::sig("def encode_scaled(matrix: NDArray[typing.Any], side: ScaledSide, axis: "
                     "str, scale: float | None) -> tuple[NDArray[typing.Any], "
                     "NDArray[typing.Any], float]"),
             "Codes and scales of a matrix in memory order, and the scale of the tensor.");
  module.def("decode_scaled", &DecodeMatrix, nb::arg("codes").noconvert(), nb::arg("scales"),
             nb::arg("tensor_scale"), nb::arg("side"), nb::arg("axis"),
             nb::arg("values").noconvert(),
             nb::sig("def decode_scaled(codes: NDArray[typing.Any], scales: Sequence[int], "
                     "tensor_scale: float, side: ScaledSide, axis: str, values: "
                     "NDArray[typing.Any]) -> None"),
             "Decodes what encode_scaled returned.");
  module.def("measure_scaled", &MeasureMatrix, nb::arg("matrix").noconvert(), nb::arg("side"),
             nb::arg("axis"), nb::arg("rows"), nb::arg("scale").none(),
             nb::sig("def measure_scaled(matrix: NDArray[typing.Any], side: ScaledSide, axis: "
                     "str, rows: bool, scale: float | None) -> dict[str, typing.Any]"),
             "What a conversion loses.");
  module.def("delayed_scales", &DelayedScales, nb::arg("largest"), nb::arg("side"),
             "The scales at steps with these largest magnitudes.");
}

}  // namespace dlsim::python
