// SPDX-License-Identifier: Apache-2.0
#include "python/src/profile_input.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <set>
#include <string_view>

#include "dlsim/error.h"
#include "python/src/array_arguments.h"
#include "sim/base/quantity.h"

namespace dlsim::python {

using namespace sim;

namespace {

constexpr size_t kMaxNameBytes = 4096;  // as in a trace

DType DTypeOf(const std::string& name, const HostArray& array) {
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype == nb::dtype<float>()) return DType::kF32;
  if (dtype == nb::dtype<double>()) return DType::kF64;
  if (dtype.lanes == 1 && dtype.bits == 16) {
    if (dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) return DType::kF16;
    if (dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::kBF16;
  }
  throw UsageError(
      Quoted(name), "bad element type", "float32, float64, float16 or bfloat16",
      "type code " + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) + " bits");
}

Role RoleOf(const std::string& name, std::string_view role) {
  if (const std::optional<Role> known = ValueNamed<Role>(role)) return *known;
  throw UsageError(Quoted(name), "unknown role", "grad, act_grad, act or value", Quoted(role));
}

void Describe(const HostArray& array, TraceTensor& tensor) {
  tensor.dtype = DTypeOf(tensor.name, array);
  for (size_t axis = 0; axis < array.ndim(); ++axis) tensor.shape.push_back(array.shape(axis));
  tensor.memory = static_cast<const std::byte*>(array.data());
}

void Describe(const Memory& memory, TraceTensor& tensor) {
  const auto& [device, address, element, shape] = memory;
  tensor.dtype = DTypeOfElement(element);
  tensor.shape = shape;
  tensor.memory = reinterpret_cast<const std::byte*>(address);
  tensor.device = device;
}

TraceTensor TensorOf(const NamedArray& named) {
  const auto& [name, role, values] = named;
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw UsageError("tensors", "bad name", "1 to " + std::to_string(kMaxNameBytes) + " bytes",
                     std::to_string(name.size()));
  }
  TraceTensor tensor;
  tensor.name = name;
  tensor.role = RoleOf(name, role);
  std::visit([&](const auto& where) { Describe(where, tensor); }, values);
  for (const uint64_t size : tensor.shape) tensor.elements *= size;
  return tensor;
}

}  // namespace

float GradScaleOf(double given) {
  const float scale = static_cast<float>(given);
  if (std::isfinite(scale) && scale > 0 && std::isfinite(1.0f / scale)) return scale;
  throw UsageError("grad_scale", "bad loss scale",
                   "a finite positive float32 with a finite reciprocal",
                   std::isfinite(given) ? PythonRepr(given) : HexFloat(given));
}

Recording RecordingOf(const Part& part) {
  const auto& [micro, grad_scale, metadata, arrays] = part;
  Recording recording;
  recording.place = "memory";
  recording.micro = micro;
  recording.grad_scale = GradScaleOf(grad_scale);
  recording.metadata = metadata;
  std::set<std::string_view> names;
  for (const NamedArray& array : arrays) {
    const TraceTensor& tensor = recording.tensors.emplace_back(TensorOf(array));
    recording.file_bytes += tensor.elements * DTypeSize(tensor.dtype);
    const std::string& name = std::get<0>(array);
    if (!names.insert(name).second) throw UsageError(Quoted(name), "given twice");
  }
  return recording;
}

int DeviceOf(const Recording& recording) {
  int device = -1;
  for (const TraceTensor& tensor : recording.tensors) {
    if (tensor.device < 0 || tensor.device == device) continue;
    if (device >= 0) {
      throw UsageError(Quoted(tensor.name), "on another device than tensors before",
                       "cuda:" + std::to_string(device) + " or the host's memory",
                       "cuda:" + std::to_string(tensor.device));
    }
    device = tensor.device;
  }
  return device;
}

}  // namespace dlsim::python
