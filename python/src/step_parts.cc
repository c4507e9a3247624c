// SPDX-License-Identifier: Apache-2.0
#include "python/src/step_parts.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "dlsim/error.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "sim/base/quantity.h"
#include "sim/replay/step_sources.h"

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

// Completes a description; returns where the values are, null if they were tabulated.
const std::byte* Describe(const HostArray& array, TensorInfo& info) {
  info.dtype = DTypeOf(info.name, array);
  for (size_t axis = 0; axis < array.ndim(); ++axis) info.shape.push_back(array.shape(axis));
  return static_cast<const std::byte*>(array.data());
}

const std::byte* Describe(const Tabulated& tabulated, TensorInfo& info) {
  info.dtype = DTypeOfElement(std::get<0>(tabulated));
  info.shape = std::get<1>(tabulated);
  return nullptr;
}

TraceTensor TensorOf(const NamedArray& named) {
  const auto& [name, role, values] = named;
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw UsageError("tensors", "bad name", "1 to " + std::to_string(kMaxNameBytes) + " bytes",
                     std::to_string(name.size()));
  }
  TensorInfo info = {.name = name, .role = RoleOf(name, role), .shape = {}};
  const std::byte* const memory =
      std::visit([&](const auto& where) { return Describe(where, info); }, values);
  uint64_t elements = 1;
  for (const uint64_t size : info.shape) elements *= size;
  return {.info = std::move(info), .elements = elements, .memory = memory};
}

// Returns a part with all its tensors, in order; refers to the arrays' values.
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
    recording.file_bytes += tensor.elements * DTypeSize(tensor.info->dtype);
    const std::string& name = std::get<0>(array);
    if (!names.insert(name).second) throw UsageError(Quoted(name), "given twice");
  }
  return recording;
}

// Makes room for a tensor: a gradient behind `at` - 1 others, and empty tables in all parts.
void MakeRoom(size_t at, const TensorRef& tensor, StepTables& step) {
  const auto insert = [&](auto& list, auto value) {
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), std::move(value));
  };
  insert(step.tensors, tensor);
  for (std::vector<TensorTable>& part : step.parts) insert(part, TensorTable());
  for (std::vector<ScaledLoss>& losses : step.scaled) insert(losses, ScaledLoss());
  if (!IsGradient(tensor->role)) return;
  ++step.gradients;
  for (auto& [mantissa, parts] : step.by_mantissa) {
    for (std::vector<TensorTable>& part : parts) insert(part, TensorTable());
  }
}

// Puts what was tabulated before to its place among the tensors of the part.
void Insert(const std::vector<NamedArray>& arrays, const Recording& described,
            const ProfileSettings& settings, StepTables& step) {
  size_t gradients = 0, others = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const TraceTensor& tensor = described.tensors[i];
    const bool is_gradient = IsGradient(tensor.info->role);
    const size_t at = is_gradient ? gradients++ : step.gradients + others++;
    const auto* const tabulated = std::get_if<Tabulated>(&std::get<2>(arrays[i]));
    if (tabulated == nullptr) continue;
    const auto& tables = std::get<2>(*tabulated);
    const size_t wanted = is_gradient ? 1 + settings.mantissas.size() : 1;
    if (!settings.scaled.empty() || tables.size() != wanted ||
        tables.front().elements != tensor.elements) {
      throw UsageError(Quoted(tensor.info->name), "other tables than the profile needs",
                       std::to_string(wanted), std::to_string(tables.size()));
    }
    MakeRoom(at, tensor.info, step);
    step.parts.front()[at] = tables.front();
    for (size_t m = 1; m < tables.size(); ++m) {
      step.by_mantissa.at(settings.mantissas[m - 1]).front()[at] = tables[m];
    }
  }
}

// Adds the tensors of a part to those of the last part of the step.
void AddTensors(StepTables part, StepTables& step) {
  std::map<std::string, size_t> places;
  for (size_t t = 0; t < step.tensors.size(); ++t) places[step.tensors[t]->name] = t;
  const size_t before = step.gradients;
  for (size_t t = 0; t < part.tensors.size(); ++t) {
    const TensorRef& tensor = part.tensors[t];
    const bool is_gradient = IsGradient(tensor->role);
    size_t at = is_gradient ? step.gradients : step.tensors.size();
    if (const auto found = places.find(tensor->name); found == places.end()) {
      MakeRoom(at, tensor, step);
    } else {
      at = found->second + (found->second < before ? 0 : step.gradients - before);
      if (IsGradient(step.tensors[at]->role) != is_gradient) {
        throw UsageError(Quoted(tensor->name), "has another role than in the micro-step before");
      }
    }
    step.parts.back()[at] = std::move(part.parts.front()[t]);
    for (size_t f = 0; f < step.scaled.size(); ++f) step.scaled[f][at].Merge(part.scaled[f][t]);
    if (!is_gradient) continue;
    for (auto& [mantissa, parts] : step.by_mantissa) {
      parts.back()[at] = std::move(part.by_mantissa.at(mantissa).front()[t]);
    }
  }
}

// Adds tensors to a step that has one part. Throws InputError if it has one of them.
void AddMore(StepTables more, StepTables& step) {
  std::set<std::string_view> names;
  for (const TensorRef& tensor : step.tensors) names.insert(tensor->name);
  for (const TensorRef& tensor : more.tensors) {
    if (names.contains(tensor->name)) throw InputError(Quoted(tensor->name), "given twice");
  }
  step.files.front().bytes += more.files.front().bytes;
  AddTensors(std::move(more), step);
}

void AddMicroStep(StepTables part, StepTables& step) {
  step.micro_steps.push_back(part.micro_steps.front());
  step.parts.emplace_back(step.tensors.size());
  for (auto& [mantissa, parts] : step.by_mantissa) parts.emplace_back(step.gradients);
  step.files.insert(step.files.end(), part.files.begin(), part.files.end());
  AddTensors(std::move(part), step);
}

}  // namespace

float GradScaleOf(double given) {
  const float scale = static_cast<float>(given);
  if (std::isfinite(scale) && scale > 0 && std::isfinite(1.0f / scale)) return scale;
  throw UsageError("grad_scale", "bad loss scale",
                   "a finite positive float32 with a finite reciprocal",
                   std::isfinite(given) ? PythonRepr(given) : HexFloat(given));
}

void StepParts::Add(int64_t step, const Part& part) {
  if (step < 0) throw UsageError("step", "out of range", "0 or more", std::to_string(step));
  if (step_ && step_->step != step) {
    throw UsageError("step", "another one is not finished", std::to_string(step_->step),
                     std::to_string(step));
  }
  const bool more = step_ && std::get<0>(part) == -1 && step_->micro_steps.front() == -1;
  if (!more) CheckMicro(std::get<0>(part));
  const std::vector<NamedArray>& arrays = std::get<3>(part);
  const Recording described = RecordingOf(part);
  nb::gil_scoped_release release;
  TraceStep recorded;
  recorded.step = step;
  Recording& recording = recorded.recordings.emplace_back(described);
  size_t i = 0;
  std::erase_if(recording.tensors, [&](const TraceTensor&) {
    return std::holds_alternative<Tabulated>(std::get<2>(arrays[i++]));
  });
  StepOptions options;
  options.scaled = settings_.scaled;
  options.mantissas = settings_.mantissas;
  StepTables tables = TabulateStep(recorded, options);
  Insert(arrays, described, settings_, tables);
  if (more) {
    AddMore(std::move(tables), *step_);
  } else if (step_) {
    AddMicroStep(std::move(tables), *step_);
  } else {
    step_ = std::move(tables);
  }
}

StepTables StepParts::Take() {
  if (!step_) throw UsageError("profile", "no step to finish");
  return *std::exchange(step_, std::nullopt);
}

std::unique_ptr<StepSource> StepParts::TakeSource() {
  return std::make_unique<StepSource>(WithoutLosses(HeldSteps({Take()})));
}

// A step without micro-steps has one part, -1; others count theirs from 0.
void StepParts::CheckMicro(int64_t micro) const {
  const int64_t next = step_ ? static_cast<int64_t>(step_->micro_steps.size()) : 0;
  const bool whole = step_ && step_->micro_steps.front() == -1;
  if (!whole && (micro == next || (micro == -1 && !step_))) return;
  throw UsageError("parts", "micro-steps must ascend from 0", std::to_string(next),
                   std::to_string(micro));
}

void BindHeldStep(nb::module_& module) {
  nb::class_<StepParts>(module, "HeldStep", "A step, tabulated from arrays, for call.")
      .def(nb::init<>())
      .def("add", &StepParts::Add, nb::arg("step"), nb::arg("part"),
           nb::sig("def add(self, step: int, part: tuple[int, float, Mapping[str, str], "
                   "Sequence[tuple[str, str, typing.Any]]]) -> None"),
           "Tabulates one part of a step, as ProfileWriter.add.")
      .def("drop", &StepParts::Drop, "Forgets the parts.");
}

}  // namespace dlsim::python
