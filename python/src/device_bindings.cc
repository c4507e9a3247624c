// SPDX-License-Identifier: Apache-2.0
// Arrays in device memory by their addresses: what dlsim.arrays._cuda_arrays calls.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "python/src/array_arguments.h"
#include "python/src/bindings.h"
#include "python/src/device_arrays.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

using Queue = std::tuple<int, uintptr_t>;                           // device, stream
using DeviceMemory = std::tuple<uintptr_t, uint64_t, std::string>;  // address, elements, type

DeviceQueue QueueOf(const Queue& queue) {
  const auto& [device, stream] = queue;
  return {device, reinterpret_cast<gpu::Stream>(stream)};
}

gpu::DeviceTensor TensorOf(const DeviceMemory& memory) {
  const auto& [address, elements, element] = memory;
  gpu::DeviceTensor tensor;
  tensor.values = reinterpret_cast<const void*>(address);
  tensor.elements = elements;
  tensor.dtype = DTypeOfElement(element);
  return tensor;
}

void Encode(const Queue& queue, const DeviceMemory& values, const Conversion& conversion,
            const Draws& draws, uintptr_t codes) {
  const ArrayConversion how = ConversionOf(conversion, draws);
  gpu::DeviceTensor tensor = TensorOf(values);
  tensor.codes = reinterpret_cast<void*>(codes);
  const nb::gil_scoped_release release;
  EncodeOnDevice(QueueOf(queue), how, tensor);
}

void Decode(const Queue& queue, uintptr_t codes, const NamedFormat& format, uintptr_t values,
            uint64_t count) {
  const nb::gil_scoped_release release;
  DecodeOnDevice(QueueOf(queue), format.format, reinterpret_cast<const void*>(codes),
                 reinterpret_cast<float*>(values), count);
}

std::vector<TensorTable> Tabulate(const Queue& queue, const std::vector<DeviceMemory>& memories,
                                  double grad_scale) {
  std::vector<gpu::DeviceTensor> tensors;
  for (const DeviceMemory& memory : memories) {
    tensors.push_back(TensorOf(memory));
    tensors.back().grad_scale = static_cast<float>(grad_scale);
  }
  const nb::gil_scoped_release release;
  return TabulateOnDevice(QueueOf(queue), tensors);
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
