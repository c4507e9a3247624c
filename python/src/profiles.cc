// SPDX-License-Identifier: Apache-2.0
// Profiles: dlsim._core.ProfileWriter makes them of arrays in memory, ProfileReader reads them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "python/src/bindings.h"
#include "python/src/recorded.h"
#include "python/src/step_parts.h"
#include "sim/app/shared_options.h"
#include "sim/base/quantity.h"

namespace dlsim::python {

using namespace sim;

namespace {

ProfileWriter::Existing ExistingFrom(const std::string& existing) {
  if (existing == "replace") return ProfileWriter::Existing::kReplace;
  if (existing == "continue") return ProfileWriter::Existing::kContinue;
  throw UsageError("existing", "unknown rule", "replace or continue", Quoted(existing));
}

// As `dlsim profile` has them.
ProfileSettings SettingsOf(const Metadata& description, const std::vector<std::string>& formats,
                           const std::vector<std::string>& scales) {
  ProfileSettings settings;
  settings.description = description;
  settings.scaled = ScaledFormatsOf(formats, "scaled_formats");
  settings.mantissas = MantissasOf(scales, "scales");
  return settings;
}

// Writes a profile step by step.
class BoundProfileWriter {
 public:
  BoundProfileWriter(const std::string& folder, const Metadata& description,
                     const std::vector<std::string>& scaled_formats,
                     const std::vector<std::string>& scales, const std::string& existing)
      : parts_(SettingsOf(description, scaled_formats, scales)),
        writer_(folder, parts_.settings(), ExistingFrom(existing)) {}

  std::vector<float> mantissas() const { return parts_.settings().mantissas; }

  // As StepParts.
  void Add(int64_t step, const Part& part) { parts_.Add(step, part); }

  // Writes the step that the parts make.
  void Finish() {
    nb::gil_scoped_release release;
    writer_.Write(parts_.Take());
  }

  void Drop() { parts_.Drop(); }

 private:
  StepParts parts_;
  ProfileWriter writer_;
};

class LoadedProfileStep {
 public:
  explicit LoadedProfileStep(StepTables step) : step_(std::move(step)) {}

  const StepTables& step() const { return step_; }

  const TensorTable& Table(size_t part, size_t tensor) const {
    return step_.parts.at(part).at(tensor);
  }

  nb::tuple Exponents() const {
    return nb::make_tuple(HeadersOf(step_.tensors), ExponentCounts(step_));
  }

 private:
  StepTables step_;
};

class BoundProfile {
 public:
  BoundProfile(const nb::bytes& folder, std::string tensors)
      : reader_(Open(PathsOf({folder}).front())), tensors_(std::move(tensors)) {}

  const ProfileReader& reader() const { return reader_; }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> numbers(reader_.step_count());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = reader_.step_number(i);
    return numbers;
  }

  LoadedProfileStep Load(size_t i) const {
    if (i >= reader_.step_count()) throw nb::index_error("step");
    const nb::gil_scoped_release release;
    sim::Step step(reader_.Load(i), nullptr, StepOptions());
    step.Drop([&](const TensorInfo& tensor) {
      return fnmatch(tensors_.c_str(), tensor.name.c_str(), 0) != 0;
    });
    return LoadedProfileStep(step.tables());
  }

 private:
  static ProfileReader Open(const std::string& folder) {
    const nb::gil_scoped_release release;
    return ProfileReader::Open(folder);
  }

  ProfileReader reader_;
  std::string tensors_;
};

bool IsProfile(const nb::bytes& path) { return ProfileReader::IsProfile(PathsOf({path}).front()); }

}  // namespace

void BindProfiles(nb::module_& module) {
  nb::class_<BoundProfileWriter>(module, "ProfileWriter",
                                 "Writes a profile from arrays, step by step.")
      .def(nb::init<const std::string&, const Metadata&, const std::vector<std::string>&,
                    const std::vector<std::string>&, const std::string&>(),
           nb::arg("folder"), nb::arg("description") = Metadata{},
           nb::arg("scaled_formats") = std::vector<std::string>{},
           nb::arg("scales") = std::vector<std::string>{}, nb::arg("existing") = "replace",
           "The options are those of `dlsim profile`. `existing`: 'replace', or 'continue' a "
           "profile with the same settings.")
      .def_prop_ro("mantissas", &BoundProfileWriter::mantissas,
                   "Those of the scales, ascending, but for 1.")
      .def("add", &BoundProfileWriter::Add, nb::arg("step"), nb::arg("part"),
           nb::sig("def add(self, step: int, part: tuple[int, float, Mapping[str, str], "
                   "Sequence[tuple[str, str, typing.Any]]]) -> None"),
           "Tabulates a part of a step, which finish() writes: (micro, grad_scale, metadata, "
           "tensors), one per micro-step, or with micro = -1 the step as a whole, or more tensors "
           "of it. Tensors are (name, role, array), float32, float64, float16 or bfloat16 in CPU "
           "memory, or (type, shape, tables): a table for 1 and, of gradients, one for each of "
           "`mantissas`.")
      .def("finish", &BoundProfileWriter::Finish, "Writes the step whose parts were added.")
      .def("drop", &BoundProfileWriter::Drop, "Forgets the parts of a step that is not finished.");
  nb::class_<LoadedProfileStep>(module, "LoadedProfileStep", "One step of a profile.")
      .def_prop_ro("number", [](const LoadedProfileStep& self) { return self.step().step; })
      .def("micro_steps", [](const LoadedProfileStep& self) { return self.step().micro_steps; })
      .def("parts", [](const LoadedProfileStep& self) { return self.step().parts.size(); })
      .def(
          "metadata", [](const LoadedProfileStep& self) { return DictOf(self.step().metadata); },
          nb::sig("def metadata(self) -> dict[str, str]"))
      .def(
          "tensors", [](const LoadedProfileStep& self) { return HeadersOf(self.step().tensors); },
          nb::sig("def tensors(self) -> list[tuple[str, str, str, tuple[int, ...]]]"))
      .def("table", &LoadedProfileStep::Table, nb::arg("part"), nb::arg("tensor"),
           nb::rv_policy::copy, "The table of a tensor in a part.")
      .def("exponents", &LoadedProfileStep::Exponents,
           nb::sig("def exponents(self) -> tuple[list[tuple[str, str, str, tuple[int, ...]]], "
                   "numpy.typing.NDArray[numpy.int64]]"),
           "As LoadedStep.exponents.");
  nb::class_<BoundProfile>(module, "ProfileReader", "A profile, opened.")
      .def(nb::init<const nb::bytes&, std::string>(), nb::arg("folder"), nb::arg("tensors"))
      .def("steps", &BoundProfile::Steps)
      .def(
          "description",
          [](const BoundProfile& self) { return DictOf(self.reader().settings().description); },
          nb::sig("def description(self) -> dict[str, str]"))
      .def("accumulate",
           [](const BoundProfile& self) {
             return std::string(NameOf(self.reader().settings().accumulation));
           })
      .def("tensors", [](const BoundProfile& self) { return self.reader().settings().tensors; })
      .def("file_bytes", [](const BoundProfile& self) { return self.reader().file_bytes(); })
      .def("load", &BoundProfile::Load, nb::arg("i"));
  module.def("is_profile", IsProfile, nb::arg("path"), "Whether a path is a profile.");
}

}  // namespace dlsim::python
