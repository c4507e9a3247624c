// SPDX-License-Identifier: Apache-2.0
// Arrays in the memory of a CUDA device, by their addresses: what dlsim.arrays._torch_arrays calls.
// A build without CUDA has one error for all, which says so.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/gpu.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"

#ifdef DLSIM_WITH_CUDA
#include "gpu/base/cuda.h"
#endif

namespace dlsim::python {
namespace {

// Where the work happens; the arrays lie on the device.
using Queue = std::tuple<int, uintptr_t>;                           // device, stream
using DeviceMemory = std::tuple<uintptr_t, uint64_t, std::string>;  // address, elements, type

#ifdef DLSIM_WITH_CUDA

void RequireCuda(const std::string&, int) {}

// Returns work(stream) with the device as the current one. `place` is an argument.
template <class Result, class Work>
Result OnDevice(const char*, const Queue& queue, const Work& work) {
  const nb::gil_scoped_release release;
  const gpu::CurrentDevice current(std::get<0>(queue));
  return work(reinterpret_cast<gpu::Stream>(std::get<1>(queue)));
}

#else

[[noreturn]] void RequireCuda(const std::string& place, int device) {
  throw UsageError(place, "this dlsim was built without CUDA",
                   "a tensor on the CPU, or a build with -DDLSIM_ENABLE_CUDA=ON",
                   "one on cuda:" + std::to_string(device));
}

template <class Result, class Work>
Result OnDevice(const char* place, const Queue& queue, const Work&) {
  RequireCuda(place, std::get<0>(queue));
}

#endif

gpu::DeviceTensor TensorOf(const DeviceMemory& memory) {
  const auto& [address, elements, element] = memory;
  gpu::DeviceTensor tensor;
  tensor.values = reinterpret_cast<const void*>(address);
  tensor.elements = elements;
  tensor.dtype = DTypeOfElement(element);
  return tensor;
}

// What uses a device takes its stream as `auto`, so that a build without CUDA has none of it.

void Encode(const Queue& queue, const DeviceMemory& values, const Conversion& conversion,
            const Draws& draws, uintptr_t codes) {
  const ArrayConversion how = ConversionOf(conversion, draws);
  gpu::DeviceTensor tensor = TensorOf(values);
  tensor.codes = reinterpret_cast<void*>(codes);
  OnDevice<void>("values", queue, [&](auto stream) { gpu::Encode(how, tensor, stream); });
}

void Decode(const Queue& queue, uintptr_t codes, const NamedFormat& format, uintptr_t values,
            uint64_t count) {
  OnDevice<void>("codes", queue, [&](auto stream) {
    gpu::Decode(format.format, reinterpret_cast<const void*>(codes),
                reinterpret_cast<float*>(values), count, stream);
  });
}

std::vector<TensorTable> Tabulate(const Queue& queue, const std::vector<DeviceMemory>& memories,
                                  double grad_scale) {
  std::vector<gpu::DeviceTensor> tensors;
  for (const DeviceMemory& memory : memories) {
    tensors.push_back(TensorOf(memory));
    tensors.back().grad_scale = static_cast<float>(grad_scale);
  }
  return OnDevice<std::vector<TensorTable>>(
      "values", queue, [&](auto stream) { return gpu::Tabulate(tensors, stream); });
}

}  // namespace

void BindDeviceArrays(nb::module_& module) {
  module.def("require_cuda", &RequireCuda, nb::arg("place"), nb::arg("device"),
             "Raises UsageError for the argument `place` in a build without CUDA.");
  module.def("encode_on_device", &Encode, nb::arg("queue"), nb::arg("values"),
             nb::arg("conversion"), nb::arg("draws"), nb::arg("codes"),
             "Launches encode_into for memory of a CUDA device: `queue` is device and stream, "
             "`values` address, elements and type, `codes` the address of 2 or 4 bytes a code.");
  module.def("decode_on_device", &Decode, nb::arg("queue"), nb::arg("codes"), nb::arg("format"),
             nb::arg("values"), nb::arg("count"), "Launches decode_into.");
  module.def("tabulate_on_device", &Tabulate, nb::arg("queue"), nb::arg("memories"),
             nb::arg("grad_scale"),
             "Tabulates arrays (address, elements, type) of a CUDA device that carry a loss scale, "
             "and waits for the tables.");
}

}  // namespace dlsim::python
