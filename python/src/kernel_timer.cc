// SPDX-License-Identifier: Apache-2.0
// Times the library's own calls from C++, as what bench/python_overhead.py compares Python with.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <ctime>
#include <functional>
#include <span>
#include <string>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "python/src/bindings.h"
#include "python/src/elements.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<uint16_t, nb::c_contig, nb::device::cpu>;

// Returns the call of that name over the arrays, which must outlive it.
std::function<void()> CallOf(const std::string& kernel, std::span<float> values,
                             std::span<uint16_t> codes, const Conversion& conversion) {
  const ArrayConversion how = {conversion, 1.0f, {}, 0};
  if (kernel == "encode") return [=] { EncodeArray(how, values, codes); };
  if (kernel == "decode") {
    return [=] { DecodeArray(how.conversion.format, std::span<const uint16_t>(codes), values); };
  }
  if (kernel == "quantize") {
    const Elements elements = {std::as_bytes(values).data(), values.size(), DType::kF32};
    return [=] { QuantizeElements(how, Unscale::kYes, elements, values); };
  }
  if (kernel == "measure") {
    return [=] { static_cast<void>(Measure(values, Measurement{conversion, 1.0f, {}})); };
  }
  throw UsageError("kernel", "unknown name", "encode, decode, quantize or measure", kernel);
}

// The time on the clock, or that of the calling thread alone, in which it ran.
double Now(bool cpu) {
  std::timespec now;
  clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsOf(const std::string& kernel, const Floats& values, const Codes& codes,
                 const Conversion& conversion, bool cpu) {
  if (values.size() != codes.size()) throw UsageError("codes", "bad size");
  const std::function<void()> call =
      CallOf(kernel, {values.data(), values.size()}, {codes.data(), codes.size()}, conversion);
  const nb::gil_scoped_release release;
  const double start = Now(cpu);
  call();
  return Now(cpu) - start;
}

}  // namespace

void BindKernelTimer(nb::module_& module) {
  module.def("seconds_of", &SecondsOf, nb::arg("kernel"), nb::arg("values").noconvert(),
             nb::arg("codes").noconvert(), nb::arg("conversion"), nb::arg("cpu"),
             nb::sig("def seconds_of(kernel: str, values: NDArray[typing.Any], codes: "
                     "NDArray[typing.Any], conversion: Conversion, cpu: bool) -> float"),
             "Runs a call of the C++ library, from `values` to `codes` or back, and times it; "
             "quantize is in place. `cpu` takes the time of this thread only.");
}

}  // namespace dlsim::python
