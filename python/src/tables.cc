// SPDX-License-Identifier: Apache-2.0
// Tables of tensors: dlsim._core.TensorTable.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/table.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/recorded.h"
#include "src/table/tabulate.h"

namespace dlsim::python {
namespace {

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

TensorTable TabulateArray(const Input& values, const std::string& element, double grad_scale) {
  const DType dtype = DTypeOfElement(element);
  if (values.itemsize() != DTypeSize(dtype)) throw BadElement("values", element);
  const Elements elements = {static_cast<const std::byte*>(values.data()), values.size(), dtype};
  const nb::gil_scoped_release release;
  std::vector<float> room;
  return Tabulate(FloatsOf(elements, static_cast<float>(grad_scale), room));
}

// The members of BinadeSums, one after another.
template <class Take>
void ForEachSum(BinadeSums& sums, const Take& take) {
  for (uint64_t* const one : {&sums.count, &sums.powers, &sums.significands, &sums.low_squares}) {
    take(*one);
  }
  const auto all = [&](auto& list) {
    for (uint64_t& one : list) take(one);
  };
  all(sums.set);
  all(sums.below);
  all(sums.rounding_up);
  all(sums.tail_sums);
  all(sums.tail_squares);
}

// A row for each exponent from kLowestExponent on: the members of BinadeSums in their order.
TensorTable TableFromSums(uint64_t zeros, uint64_t nan, uint64_t inf, uint32_t absmax,
                          uint32_t largest, const Sums& rows) {
  auto sums = std::make_unique<TableSums>();
  sums->zeros = zeros;
  sums->nan = nan;
  sums->inf = inf;
  sums->absmax = absmax;
  sums->largest = largest;
  size_t columns = 0;
  ForEachSum(sums->binades[0], [&](uint64_t&) { ++columns; });
  if (rows.shape(0) != kExponents || rows.shape(1) != columns) {
    throw UsageError("sums", "bad shape",
                     std::to_string(kExponents) + " rows of " + std::to_string(columns));
  }
  const int64_t* next = rows.data();
  for (BinadeSums& binade : sums->binades) {
    ForEachSum(binade, [&](uint64_t& to) { to = static_cast<uint64_t>(*next++); });
  }
  return TableOf(*sums);
}

// Returns a column of what nonzero finite values have: `of` an exponent and how many have it,
// ascending by exponent.
template <class Of>
nb::ndarray<nb::numpy, int64_t> Column(const TensorTable& table, const Of& of) {
  std::map<int64_t, int64_t> counts;
  for (const Binade& binade : table.binades) {
    counts[binade.exponent] = static_cast<int64_t>(binade.count);
  }
  for (const float value : table.values) ++counts[std::ilogb(value)];
  std::vector<int64_t> column;
  for (const auto& entry : counts) column.push_back(of(entry));
  const size_t size = column.size();
  return ArrayOf(std::move(column), {size});
}

nb::list ChannelsOf(const TensorTable& table) {
  nb::list list;
  for (const auto& [key, count] : table.channels) {
    list.append(nb::make_tuple(std::bit_cast<float>(key << 21), count));
  }
  return list;
}

nb::object AskTable(const TensorTable& table, const nb::object& format, const nb::object& scale,
                    const std::string& overflow, const std::string& subnormals) {
  const nb::module_ arguments = nb::module_::import_("dlsim.arrays._convert");
  const nb::object known = arguments.attr("conversion_of")(format, "rne", overflow, subnormals);
  const nb::object by = arguments.attr("scale_of")(scale);
  const auto conversion = nb::cast<Conversion>(known[1]);
  const auto power = static_cast<float>(nb::cast<double>(by));
  const std::optional<TensorStats> stats = Ask(table, conversion, power);
  if (!stats) {
    const NotInTable reason = OutsideTables(conversion, power).value_or(NotInTable::kEnds);
    throw UsageError("table", std::string("does not tell this: ") + WhyNot(reason),
                     "a question to the array itself");
  }
  const nb::object counters = CountersOf({*stats})[0];
  counters["quantized_sum_of_squares"] = std::numeric_limits<double>::quiet_NaN();
  return nb::module_::import_("dlsim.arrays").attr("TensorStats")(known[0], by, **counters);
}

}  // namespace

void BindTables(nb::module_& module) {
  nb::class_<TensorTable> type(
      module, "TensorTable",
      "The table of a tensor: exact counts and sums for each exponent (docs/profiles.md).");
  type.def_ro("elements", &TensorTable::elements, "How many elements the tensor has.")
      .def_ro("zeros", &TensorTable::zeros, "Elements that are +0 or -0.")
      .def_ro("nan", &TensorTable::nan, "Elements that are NaN.")
      .def_ro("inf", &TensorTable::inf, "Elements that are infinite.")
      .def_ro("absmax", &TensorTable::absmax, "The largest finite magnitude; 0 if there is none.")
      .def_ro("largest", &TensorTable::largest, "The largest finite value; 0 if none is positive.")
      .def_ro("sum_of_squares", &TensorTable::sum_of_squares,
              "Of the finite values: the exact sum, rounded once.")
      .def_prop_ro(
          "exponents",
          [](const TensorTable& self) {
            return Column(self, [](const auto& entry) { return entry.first; });
          },
          nb::rv_policy::move,
          nb::for_getter(nb::sig("def exponents(self) -> numpy.typing.NDArray[numpy.int64]")),
          "The exponents that nonzero finite values have, 2^e <= |x| < 2^(e + 1), ascending.")
      .def_prop_ro(
          "counts",
          [](const TensorTable& self) {
            return Column(self, [](const auto& entry) { return entry.second; });
          },
          nb::rv_policy::move,
          nb::for_getter(nb::sig("def counts(self) -> numpy.typing.NDArray[numpy.int64]")),
          "How many values have each of these exponents.")
      .def_prop_ro("channels", &ChannelsOf,
                   nb::for_getter(nb::sig("def channels(self) -> list[tuple[float, int]]")),
                   "Of a gradient in a profile: magnitudes, and how many channels have their "
                   "largest from there to the next quarter of a power of two.")
      .def(
          "add", [](TensorTable& self, const TensorTable& piece) { self.Add(piece); },
          nb::arg("piece"), "Adds the table of another piece of the tensor.")
      .def(
          "set_channels",
          [](TensorTable& self, const std::vector<std::pair<uint32_t, uint64_t>>& channels) {
            self.channels = channels;
          },
          nb::arg("channels"), "Sets pairs of magnitude bits >> 21 and a count, ascending.")
      .def("ask", &AskTable, nb::arg("format"), nb::arg("scale") = 1.0, nb::kw_only(),
           nb::arg("overflow") = "inf", nb::arg("subnormals") = "keep",
           nb::sig("def ask(self, format: FormatName, scale: float | str = 1.0, *, "
                   "overflow: str = 'inf', subnormals: str = 'keep') -> TensorStats"),
           "Returns what `dlsim.measure` returns of the tensor, to nearest at a power of two.\n\n"
           "But `quantized_sum_of_squares` is NaN. Raises UsageError for what the table does not "
           "tell: other scales, formats of more than 11 bits of significand, some values at their "
           "ends.")
      .def("__repr__",
           [](const TensorTable& self) {
             return fmt::format("<dlsim.TensorTable: {} elements, absmax {:.3g}>", self.elements,
                                self.absmax);
           })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"));
  type.attr("__hash__") = nb::none();
  module.def("tabulate_array", &TabulateArray, nb::arg("values").noconvert(), nb::arg("element"),
             nb::arg("grad_scale") = 1.0,
             nb::sig("def tabulate_array(values: NDArray[typing.Any], element: str, grad_scale: "
                     "float = 1.0) -> TensorTable"),
             "The table of elements of a type, on all threads.");
  module.def("table_from_sums", &TableFromSums, nb::arg("zeros"), nb::arg("nan"), nb::arg("inf"),
             nb::arg("absmax_bits"), nb::arg("largest_bits"), nb::arg("sums").noconvert(),
             nb::sig("def table_from_sums(zeros: int, nan: int, inf: int, absmax_bits: int, "
                     "largest_bits: int, sums: numpy.typing.NDArray[numpy.int64]) -> TensorTable"),
             "The table of which these are the sums (BinadeSums in src/table/tabulate.h), a row "
             "for each exponent from -149 to 127.");
}

}  // namespace dlsim::python
