// SPDX-License-Identifier: Apache-2.0
// Arrays to codes and back: what dlsim.arrays calls with C-contiguous arrays and checked names.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "python/src/array_arguments.h"
#include "python/src/bindings.h"
#include "python/src/elements.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::c_contig, nb::device::cpu>;

Elements ElementsOf(const Input& array, const std::string& element) {
  const DType dtype = DTypeOfElement(element);
  if (array.itemsize() != DTypeSize(dtype)) throw BadElement("values", element);
  return {static_cast<const std::byte*>(array.data()), array.size(), dtype};
}

template <class Byte, class Array>
CodesOf<Byte> CodesIn(const Array& array, const Format& format, size_t count) {
  const size_t bytes = array.itemsize();
  const bool wide_enough = static_cast<int>(8 * bytes) >= CodeBits(format);
  if (array.size() != count || !wide_enough || (bytes != 1 && bytes != 2 && bytes != 4)) {
    throw UsageError("codes", "bad size", std::to_string(count) + " codes");
  }
  return {static_cast<Byte*>(array.data()), array.size(), bytes};
}

std::span<float> FloatsIn(const Output& array, size_t count) {
  if (array.dtype() != nb::dtype<float>() || array.size() != count) {
    throw UsageError("results", "bad size", std::to_string(count) + " float32 values");
  }
  return {static_cast<float*>(array.data()), array.size()};
}

void EncodeInto(const Input& values, const std::string& element, const Conversion& conversion,
                const Draws& draws, const Output& codes) {
  const ArrayConversion how = ConversionOf(conversion, draws);
  const Elements from = ElementsOf(values, element);
  const auto to = CodesIn<std::byte>(codes, conversion.format, from.count);
  const nb::gil_scoped_release release;
  EncodeElements(how, from, to);
}

void DecodeInto(const Input& codes, const NamedFormat& format, const Output& values) {
  const auto from = CodesIn<const std::byte>(codes, format.format, codes.size());
  const std::span<float> to = FloatsIn(values, from.count);
  const nb::gil_scoped_release release;
  DecodeElements(format.format, from, to);
}

void QuantizeInto(const Input& values, const std::string& element, const Conversion& conversion,
                  const Draws& draws, bool unscale, const Output& results) {
  const ArrayConversion how = ConversionOf(conversion, draws);
  const Elements from = ElementsOf(values, element);
  const std::span<float> to = FloatsIn(results, from.count);
  const nb::gil_scoped_release release;
  QuantizeElements(how, unscale ? Unscale::kYes : Unscale::kNo, from, to);
}

nb::list MeasureArray(const Input& values, const std::string& element,
                      const std::vector<Question>& questions, uint64_t seed, uint32_t stream) {
  const std::vector<Measurement> asked = QuestionsOf(questions, {seed, stream});
  const Elements from = ElementsOf(values, element);
  std::vector<TensorStats> stats;
  {
    const nb::gil_scoped_release release;
    stats = MeasureElements(from, asked);
  }
  return CountersOf(stats);
}

// Returns a NumPy view of the bits of an array of any framework, and the name of its element type;
// no view if NumPy has no integers of that size. The view keeps the memory alive.
nb::tuple BitsOf(nb::handle array) {
  using Any = nb::ndarray<nb::ro>;
  Any imported;
  if (!nb::try_cast(array, imported)) throw nb::type_error("values: cannot be read by DLPack");
  const nb::dlpack::dtype dtype = imported.dtype();
  const std::string name = ElementName(dtype);
  const bool on_host = imported.device_type() == nb::device::cpu::value ||
                       imported.device_type() == nb::device::cuda_host::value;
  if (!on_host) throw UsageError("values", "wrong device", "memory of the CPU");
  if (name.empty()) return nb::make_tuple(nb::none(), UnknownElement(dtype));
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t axis = 0; axis < imported.ndim(); ++axis) {
    shape.push_back(imported.shape(axis));
    strides.push_back(imported.stride(axis));
  }
  const void* data = imported.data();
  const nb::capsule owner(new Any(imported),
                          [](void* held) noexcept { delete static_cast<Any*>(held); });
  const nb::dlpack::dtype bits = {static_cast<uint8_t>(nb::dlpack::dtype_code::UInt), dtype.bits,
                                  1};
  const nb::ndarray<nb::numpy, nb::ro> view(data, shape.size(), shape.data(), owner, strides.data(),
                                            bits);
  return nb::make_tuple(view, name);
}

}  // namespace

void BindArrays(nb::module_& module) {
  nb::class_<Conversion>(module, "Conversion", "How a value becomes a code.")
      .def(
          "__init__",
          [](Conversion* self, const NamedFormat& format, const std::string& rounding,
             const std::string& overflow, const std::string& subnormals) {
            new (self) Conversion(ConversionOf(format, rounding, overflow, subnormals));
          },
          nb::arg("format"), nb::arg("rounding"), nb::arg("overflow"), nb::arg("subnormals"));
  module.def(
      "encode_into", &EncodeInto, nb::arg("values").noconvert(), nb::arg("element"),
      nb::arg("conversion"), nb::arg("draws"), nb::arg("codes").noconvert(),
      nb::sig("def encode_into(values: NDArray[typing.Any], element: str, conversion: Conversion, "
              "draws: tuple[float, int, int], codes: NDArray[typing.Any]) -> None"),
      "Encodes elements of a type; `draws` are scale, seed and stream.");
  module.def("decode_into", &DecodeInto, nb::arg("codes").noconvert(), nb::arg("format"),
             nb::arg("values").noconvert(),
             nb::sig("def decode_into(codes: NDArray[typing.Any], format: Format, values: "
                     "NDArray[typing.Any]) -> None"),
             "Decodes codes of 1, 2 or 4 bytes.");
  module.def(
      "quantize_into", &QuantizeInto, nb::arg("values").noconvert(), nb::arg("element"),
      nb::arg("conversion"), nb::arg("draws"), nb::arg("unscale"), nb::arg("results").noconvert(),
      nb::sig(
          "def quantize_into(values: NDArray[typing.Any], element: str, conversion: Conversion, "
          "draws: tuple[float, int, int], unscale: bool, results: NDArray[typing.Any]) -> None"),
      "Rounds elements through a format.");
  module.def("measure_array", &MeasureArray, nb::arg("values").noconvert(), nb::arg("element"),
             nb::arg("questions"), nb::arg("seed"), nb::arg("stream"),
             nb::sig("def measure_array(values: NDArray[typing.Any], element: str, questions: "
                     "Sequence[tuple[Conversion, float]], seed: int, stream: int) -> "
                     "list[dict[str, typing.Any]]"),
             "Measures an array for pairs of conversion and scale: the counters of each by name.");
  module.def("bits_of", &BitsOf, nb::arg("array"),
             nb::sig("def bits_of(array: object) -> tuple[NDArray[typing.Any] | None, str]"),
             "A view of the bits of an array, and the name of its element type.");
}

}  // namespace dlsim::python
