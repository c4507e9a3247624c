// SPDX-License-Identifier: Apache-2.0
// Probes: dlsim._core.ProbeWriter and dlsim._core.ProbeReader.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/probe.h"
#include "python/src/bindings.h"
#include "python/src/recorded.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Name, type as safetensors names it, shape, stride, run, count.
using Tensor =
    std::tuple<std::string, std::string, std::vector<uint64_t>, uint64_t, uint64_t, uint64_t>;
using Group = std::pair<std::string, std::map<std::string, double>>;
// Tensor, updates before, values by name.
using State = std::tuple<uint32_t, uint64_t, std::map<std::string, Floats>>;

DType DTypeOf(const std::string& name) {
  if (const std::optional<DType> dtype = ValueNamed<DType>(name)) return *dtype;
  throw UsageError("dtype", "unknown type", "F32, F16 or BF16", Quoted(name));
}

nb::tuple TupleOf(const ProbeTensor& tensor) {
  nb::list shape;
  for (const uint64_t size : tensor.shape) shape.append(size);
  return nb::make_tuple(TextOf(tensor.name), std::string(NameOf(tensor.dtype)), nb::tuple(shape),
                        tensor.stride, tensor.run, tensor.count);
}

ProbeHead HeadOf(const std::vector<Tensor>& tensors, uint64_t elements = 0,
                 const std::map<std::string, std::string>& description = {}) {
  ProbeHead head = {elements, description, {}};
  for (const auto& [name, dtype, shape, stride, run, count] : tensors) {
    head.tensors.push_back({name, shape, DTypeOf(dtype), stride, run, count});
  }
  return head;
}

template <class Array>
void RequireSize(const Array& array, uint64_t expected) {
  if (array.size() == expected) return;
  throw UsageError("probe", "wrong number of elements", std::to_string(expected),
                   std::to_string(array.size()));
}

std::vector<float> VectorOf(const Floats& array, uint64_t expected) {
  RequireSize(array, expected);
  return {array.data(), array.data() + array.size()};
}

class BoundProbeSampler {
 public:
  explicit BoundProbeSampler(const std::vector<Tensor>& tensors)
      : tensors_(HeadOf(tensors).tensors), followed_(HeadOf(tensors).FollowedCount()) {}

  void Read(const std::vector<uintptr_t>& addresses, const Memory& out) const {
    RequireSize(addresses, tensors_.size());
    RequireSize(out, followed_);
    const nb::gil_scoped_release release;
    std::span<float> rest(out.data(), out.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::span<float> part = rest.first(tensors_[i].count);
      rest = rest.subspan(part.size());
      if (addresses[i] == 0) continue;
      ReadSample(tensors_[i], reinterpret_cast<const std::byte*>(addresses[i]), part);
    }
  }

 private:
  std::vector<ProbeTensor> tensors_;
  uint64_t followed_;
};

class BoundProbeWriter {
 public:
  BoundProbeWriter(const std::string& path, const std::vector<Tensor>& tensors, uint64_t elements,
                   const std::map<std::string, std::string>& description,
                   const std::string& existing)
      : head_(HeadOf(tensors, elements, description)),
        followed_(head_.FollowedCount()),
        writer_(path, head_, ExistingFrom(existing)) {}

  void AddValues(const Floats& values, const std::vector<State>& states) {
    ProbeValues added = {VectorOf(values, followed_), {}};
    for (const auto& [tensor, updates, arrays] : states) {
      if (tensor >= head_.tensors.size()) throw UsageError("probe", "a state of no tensor");
      ProbeState& state = added.states.emplace_back(ProbeState{tensor, updates, {}});
      for (const auto& [name, array] : arrays) {
        state.values[name] = VectorOf(array, head_.tensors[tensor].count);
      }
    }
    const nb::gil_scoped_release release;
    writer_.AddValues(added);
  }

  void AddStep(int64_t step, std::optional<double> clip, const std::vector<Group>& groups,
               const std::vector<std::optional<uint32_t>>& group_of, const Floats& gradients) {
    RequireSize(gradients, followed_);
    const nb::gil_scoped_release release;
    ProbeStep added = {step, clip, {}, {}, {}, {}};
    for (const auto& [optimizer, values] : groups) added.groups.push_back({optimizer, values});
    for (const std::optional<uint32_t> group : group_of) {
      added.group_of.push_back(group.value_or(ProbeStep::kNoGroup));
      added.updated.push_back(group.has_value());
    }
    CheckGroups(added);
    writer_.AddStep(added, {gradients.data(), gradients.size()});
  }

  void Forget(int64_t step) { writer_.Forget(step); }
  void Close() { writer_.Close(); }
  size_t steps() const { return writer_.step_count(); }
  std::optional<int64_t> last_step() const { return writer_.last_step(); }
  uint64_t bytes() const { return writer_.bytes(); }

 private:
  void CheckGroups(const ProbeStep& step) const {
    bool good = step.group_of.size() == head_.tensors.size();
    for (const uint32_t group : step.group_of) {
      good = good && (group < step.groups.size() || group == ProbeStep::kNoGroup);
    }
    if (!good) throw UsageError("probe", "a group or None for each tensor is needed");
  }

  static ProbeWriter::Existing ExistingFrom(const std::string& existing) {
    if (existing == "replace") return ProbeWriter::Existing::kReplace;
    if (existing == "continue") return ProbeWriter::Existing::kContinue;
    throw UsageError("existing", "unknown rule", "replace or continue", Quoted(existing));
  }

  ProbeHead head_;
  uint64_t followed_;
  ProbeWriter writer_;
};

template <class Call>
auto WithoutLock(const Call& call) {
  const nb::gil_scoped_release release;
  return call();
}

class BoundProbeReader {
 public:
  explicit BoundProbeReader(const nb::bytes& path)
      : reader_(ProbeReader::Open(PathsOf({path})[0])) {}

  uint64_t elements() const { return reader_.head().elements; }
  nb::dict Description() const { return DictOf(reader_.head().description); }
  size_t steps() const { return reader_.step_count(); }
  uint64_t cut_bytes() const { return reader_.cut_bytes(); }

  nb::list Tensors() const {
    nb::list tensors;
    for (const ProbeTensor& tensor : reader_.head().tensors) tensors.append(TupleOf(tensor));
    return tensors;
  }

  nb::tuple Step(size_t i) const {
    ProbeStep step = WithoutLock([&] { return reader_.ReadStep(i); });
    nb::list groups;
    for (const ProbeGroup& group : step.groups) {
      nb::dict values;
      for (const auto& [name, value] : group.values) values[TextOf(name)] = value;
      groups.append(nb::make_tuple(TextOf(group.optimizer), values));
    }
    nb::list group_of;  // None of a tensor that was not updated
    for (size_t k = 0; k < step.updated.size(); ++k) {
      group_of.append(step.updated[k] ? nb::object(nb::int_(step.group_of[k])) : nb::none());
    }
    nb::object clip = nb::none();
    if (step.clip) clip = nb::float_(*step.clip);
    const size_t count = step.gradients.size();
    return nb::make_tuple(step.step, clip, groups, group_of,
                          ArrayOf(std::move(step.gradients), {count}));
  }

  nb::object Values(size_t i) const {
    std::optional<ProbeValues> values = WithoutLock([&] { return reader_.ReadValues(i); });
    if (!values) return nb::none();
    nb::list states;
    for (ProbeState& state : values->states) {
      nb::dict arrays;
      for (auto& [name, elements] : state.values) {
        const size_t count = elements.size();
        arrays[TextOf(name)] = ArrayOf(std::move(elements), {count});
      }
      states.append(nb::make_tuple(state.tensor, state.updates, arrays));
    }
    const size_t count = values->values.size();
    return nb::make_tuple(ArrayOf(std::move(values->values), {count}), states);
  }

 private:
  ProbeReader reader_;
};

}  // namespace

void BindProbes(nb::module_& module) {
  module.def(
      "sample_of",
      [](const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
         uint64_t elements) { return TupleOf(SampleOf(name, shape, DTypeOf(dtype), elements)); },
      nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("elements"),
      nb::sig("def sample_of(name: str, dtype: str, shape: Sequence[int], elements: int) -> "
              "tuple[str, str, tuple[int, ...], int, int, int]"),
      "Which elements of a parameter a probe follows: (name, type, shape, stride, run, count).");
  nb::class_<BoundProbeSampler>(module, "ProbeSampler", "Reads the followed elements of tensors.")
      .def(nb::init<const std::vector<Tensor>&>(), nb::arg("tensors"),
           "`tensors` as sample_of returns them.")
      .def("read", &BoundProbeSampler::Read, nb::arg("addresses"), nb::arg("out"),
           nb::sig("def read(self, addresses: Sequence[int], out: typing.Any) -> None"),
           "Reads into `out`, float32, from contiguous tensors in CPU memory that begin at "
           "`addresses`; those at 0 are left out.");
  nb::class_<BoundProbeWriter>(module, "ProbeWriter", "Writes a probe (.dlprobe).")
      .def(nb::init<const std::string&, const std::vector<Tensor>&, uint64_t,
                    const std::map<std::string, std::string>&, const std::string&>(),
           nb::arg("path"), nb::arg("tensors"), nb::arg("elements"),
           nb::arg("description") = std::map<std::string, std::string>{},
           nb::arg("existing") = "replace",
           "`tensors` as sample_of returns them; `existing`: 'replace', or "
           "'continue' behind the last whole update.")
      .def("add_values", &BoundProbeWriter::AddValues, nb::arg("values"),
           nb::arg("states") = std::vector<State>{},
           nb::sig("def add_values(self, values: typing.Any, states: Sequence[tuple[int, int, "
                   "Mapping[str, typing.Any]]] = ...) -> None"),
           "Appends the elements as they are between two updates, and what the optimizer remembers "
           "of them: (tensor, updates before, arrays by name). Arrays are float32 in CPU memory.")
      .def(
          "add_step", &BoundProbeWriter::AddStep, nb::arg("step"), nb::arg("clip").none(),
          nb::arg("groups"), nb::arg("group_of"), nb::arg("gradients"),
          nb::sig("def add_step(self, step: int, clip: float | None, groups: Sequence[tuple[str, "
                  "Mapping[str, float]]], group_of: Sequence[int | None], gradients: typing.Any) "
                  "-> None"),
          "Appends an update: the settings of each group, the group of each tensor, None if it was "
          "not updated, and the elements of all gradients.")
      .def("forget", &BoundProbeWriter::Forget, nb::arg("step"),
           "Removes the updates of `step` and of later ones.")
      .def("close", &BoundProbeWriter::Close, nb::call_guard<nb::gil_scoped_release>(),
           "Flushes the file to the device.")
      .def_prop_ro("steps", &BoundProbeWriter::steps, "How many updates the file holds.")
      .def_prop_ro("last_step", &BoundProbeWriter::last_step, "The number of the last one.")
      .def_prop_ro("bytes", &BoundProbeWriter::bytes, "The size of the file.");
  nb::class_<BoundProbeReader>(module, "ProbeReader", "Reads a probe (.dlprobe).")
      .def(nb::init<const nb::bytes&>(), nb::arg("path"))
      .def_prop_ro("elements", &BoundProbeReader::elements)
      .def_prop_ro("steps", &BoundProbeReader::steps)
      .def_prop_ro("cut_bytes", &BoundProbeReader::cut_bytes)
      .def("description", &BoundProbeReader::Description,
           nb::sig("def description(self) -> dict[str, str]"))
      .def("tensors", &BoundProbeReader::Tensors,
           nb::sig("def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, "
                   "int]]"))
      .def("step", &BoundProbeReader::Step, nb::arg("i"),
           nb::sig("def step(self, i: int) -> tuple[int, float | None, list[tuple[str, dict[str, "
                   "float]]], list[int | None], NDArray[numpy.float32]]"))
      .def("values", &BoundProbeReader::Values, nb::arg("i"),
           nb::sig("def values(self, i: int) -> tuple[NDArray[numpy.float32], list[tuple[int, int, "
                   "dict[str, NDArray[numpy.float32]]]]] | None"));
}

}  // namespace dlsim::python
