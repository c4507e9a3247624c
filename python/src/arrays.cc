// SPDX-License-Identifier: Apache-2.0
#include "python/src/arrays.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/table.h"
#include "python/src/bindings.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"

namespace dlsim::python {

namespace {

template <class T>
using Chunk = std::array<T, kChunkElements>;

// Calls body(begin, count) for the chunks of a block.
template <class Body>
void ForChunksOf(size_t begin, size_t count, const Body& body) {
  const size_t end = begin + count;
  for (; begin < end; begin += kChunkElements) body(begin, std::min(kChunkElements, end - begin));
}

// Returns the values of a chunk: where they are if they are float32, else turned into float32.
std::span<const float> LoadChunk(const Elements& values, size_t begin, size_t count,
                                 Chunk<float>& buffer) {
  const std::byte* from = values.data + begin * DTypeSize(values.dtype);
  if (values.dtype == DType::kF32) return {reinterpret_cast<const float*>(from), count};
  const std::span<float> loaded(buffer.data(), count);
  LoadFloats(values.dtype, from, 1.0f, loaded);
  return loaded;
}

// Calls body(begin, values) for all chunks on all threads.
template <class Body>
void ForChunks(const Elements& values, const Body& body) {
  ParallelForBlocks(values.count, [&](size_t block, size_t length) {
    alignas(64) Chunk<float> buffer;
    ForChunksOf(block, length, [&](size_t begin, size_t count) {
      body(begin, LoadChunk(values, begin, count, buffer));
    });
  });
}

ArrayConversion From(ArrayConversion how, size_t begin) {
  how.first_index += begin;
  return how;
}

// Codes of one byte pass through two.
void EncodeBytes(const ArrayConversion& how, std::span<const float> values, std::byte* codes) {
  alignas(64) Chunk<uint16_t> buffer;
  EncodeArray(how, values, std::span(buffer.data(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) codes[i] = static_cast<std::byte>(buffer[i]);
}

void EncodeChunk(const ArrayConversion& how, std::span<const float> values,
                 const CodesOf<std::byte>& codes, size_t begin) {
  std::byte* to = codes.data + begin * codes.bytes;
  if (codes.bytes == 1) {
    EncodeBytes(how, values, to);
  } else if (codes.bytes == 2) {
    EncodeArray(how, values, std::span(reinterpret_cast<uint16_t*>(to), values.size()));
  } else {
    EncodeArray(how, values, std::span(reinterpret_cast<uint32_t*>(to), values.size()));
  }
}

void DecodeBytes(const Format& format, const std::byte* codes, std::span<float> values) {
  ParallelForBlocks(values.size(), [&](size_t block, size_t length) {
    alignas(64) Chunk<uint16_t> buffer;
    ForChunksOf(block, length, [&](size_t begin, size_t count) {
      for (size_t i = 0; i < count; ++i) buffer[i] = static_cast<uint16_t>(codes[begin + i]);
      DecodeArray(format, std::span<const uint16_t>(buffer.data(), count),
                  values.subspan(begin, count));
    });
  });
}

template <class Code>
void QuantizeWith(const ArrayConversion& how, Unscale unscale, const Elements& values,
                  std::span<float> results) {
  const float inverse = unscale == Unscale::kYes ? 1.0f / how.scale : 1.0f;
  ForChunks(values, [&](size_t begin, std::span<const float> chunk) {
    alignas(64) Chunk<Code> buffer;
    const std::span<Code> codes(buffer.data(), chunk.size());
    EncodeArray(From(how, begin), chunk, codes);
    const std::span<float> out = results.subspan(begin, chunk.size());
    DecodeArray(how.conversion.format, std::span<const Code>(codes), out);
    if (inverse == 1.0f) return;
    for (float& value : out) value *= inverse;
  });
}

}  // namespace

void EncodeElements(const ArrayConversion& how, const Elements& values,
                    const CodesOf<std::byte>& codes) {
  if (values.dtype == DType::kF32 && codes.bytes > 1) {
    const auto* floats = reinterpret_cast<const float*>(values.data);
    EncodeChunk(how, std::span(floats, values.count), codes, 0);
    return;
  }
  ForChunks(values, [&](size_t begin, std::span<const float> chunk) {
    EncodeChunk(From(how, begin), chunk, codes, begin);
  });
}

void DecodeElements(const Format& format, const CodesOf<const std::byte>& codes,
                    std::span<float> values) {
  if (codes.bytes == 1) {
    DecodeBytes(format, codes.data, values);
  } else if (codes.bytes == 2) {
    const auto* from = reinterpret_cast<const uint16_t*>(codes.data);
    DecodeArray(format, std::span(from, codes.count), values);
  } else {
    const auto* from = reinterpret_cast<const uint32_t*>(codes.data);
    DecodeArray(format, std::span(from, codes.count), values);
  }
}

void QuantizeElements(const ArrayConversion& how, Unscale unscale, const Elements& values,
                      std::span<float> results) {
  if (CodeBits(how.conversion.format) <= 16) {
    QuantizeWith<uint16_t>(how, unscale, values, results);
  } else {
    QuantizeWith<uint32_t>(how, unscale, values, results);
  }
}

std::span<const float> FloatsOf(const Elements& values, float grad_scale,
                                std::vector<float>& room) {
  if (values.dtype == DType::kF32 && grad_scale == 1) {
    return {reinterpret_cast<const float*>(values.data), values.count};
  }
  room.resize(values.count);
  ParallelForBlocks(values.count, [&](size_t block, size_t length) {
    LoadFloats(values.dtype, values.data + block * DTypeSize(values.dtype), grad_scale,
               std::span(room).subspan(block, length));
  });
  return room;
}

std::vector<TensorStats> MeasureElements(const Elements& values,
                                         std::span<const ArrayConversion> questions) {
  std::vector<float> room;
  const std::span<const float> floats = FloatsOf(values, 1, room);
  const TensorTable table = Tabulate(floats);
  std::vector<TensorStats> answers = Measure(floats, questions);
  for (size_t q = 0; q < questions.size(); ++q) {
    answers[q].sum_of_squares = table.sum_of_squares;
    const auto told = Ask(table, questions[q].conversion, questions[q].scale);
    if (!told) continue;
    answers[q].error_sum_of_squares = told->error_sum_of_squares;
    answers[q].underflow_sum_of_squares = told->underflow_sum_of_squares;
  }
  return answers;
}

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

std::vector<ArrayConversion> QuestionsOf(const std::vector<Question>& questions,
                                         const RandomStream& random) {
  std::vector<ArrayConversion> result;
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

// Arrays to codes and back: what dlsim.arrays calls with C-contiguous arrays and checked names.

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
  const std::vector<ArrayConversion> asked = QuestionsOf(questions, {seed, stream});
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
