// SPDX-License-Identifier: Apache-2.0
// Profiles made from arrays in memory: dlsim._core.ProfileWriter.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"
#include "python/src/bindings.h"
#include "python/src/profile_input.h"
#include "python/src/step_parts.h"
#include "sim/align/join_shards.h"
#include "sim/profile/ladder_settings.h"

namespace dlsim::python {

using namespace sim;

namespace {

// Empty lists and texts stand for the defaults of `dlsim profile`.
void SetFormats(const std::vector<std::string>& formats, const std::vector<std::string>& roundings,
                const std::string& subnormals, const std::string& scales,
                ProfileSettings& profile) {
  LadderSettings settings;
  settings.formats = formats;
  settings.roundings = roundings;
  if (!scales.empty()) settings.scales = scales;
  if (const std::optional<Subnormals> rule = ValueNamed<Subnormals>(subnormals)) {
    settings.subnormals = {*rule};
  } else if (subnormals != "both") {
    throw UsageError("subnormals", "unknown rule", "keep, flush or both", Quoted(subnormals));
  }
  sim::SetFormats(settings, profile);
}

ProfileWriter::Existing ExistingFrom(const std::string& existing) {
  if (existing == "replace") return ProfileWriter::Existing::kReplace;
  if (existing == "continue") return ProfileWriter::Existing::kExtend;
  throw UsageError("existing", "unknown rule", "replace or continue", Quoted(existing));
}

// Writes a profile step by step. Safe after a crash: see ProfileWriter.
class BoundProfileWriter {
 public:
  BoundProfileWriter(const std::string& path, const Metadata& description,
                     const std::vector<std::string>& formats,
                     const std::vector<std::string>& roundings, const std::string& subnormals,
                     const std::string& scales, const std::string& existing) {
    const ProfileWriter::Existing rule = ExistingFrom(existing);
    SetFormats(formats, roundings, subnormals, scales, settings_);
    settings_.description = description;
    nb::gil_scoped_release release;
    parts_.emplace(settings_);
    writer_ = std::make_unique<ProfileWriter>(path, settings_, parts_->edges(), rule);
    replaced_partial_ = writer_->replaced_partial();
    if (rule == ProfileWriter::Existing::kReplace) writer_->Truncate(0);
  }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const ProfileWriter::Done& done : writer_->done()) steps.push_back(done.step);
    return steps;
  }

  // Forgets the steps from `step` on.
  void Forget(int64_t step) {
    CheckOpen();
    const std::span<const ProfileWriter::Done> done = writer_->done();
    const auto first = std::ranges::lower_bound(done, step, {}, &ProfileWriter::Done::step);
    writer_->Truncate(static_cast<size_t>(first - done.begin()));
  }

  // As StepParts.
  void Add(int64_t step, const Part& part) {
    CheckOpen();
    parts_->Add(step, part);
  }

  // Writes the step that the parts make.
  void Finish() {
    CheckOpen();
    nb::gil_scoped_release release;
    writer_->Append(EncodeStep(parts_->Take(), parts_->edges()));
  }

  void Drop() { parts_->Drop(); }

  void Append(int64_t step, const std::vector<Part>& parts) {
    if (parts.empty()) throw UsageError("parts", "step without recordings", "one or more");
    if (!parts_->empty()) throw UsageError("profile", "a step is not finished");
    try {
      for (const Part& part : parts) Add(step, part);
    } catch (...) {
      Drop();
      throw;
    }
    Finish();
  }

  void Commit() {
    CheckOpen();
    nb::gil_scoped_release release;
    writer_->Commit();
    committed_ = true;
  }

  bool replaced_partial() const { return replaced_partial_; }

 private:
  void CheckOpen() const {
    if (committed_) throw UsageError("profile", "complete already");
  }

  ProfileSettings settings_;
  std::optional<StepParts> parts_;
  std::unique_ptr<ProfileWriter> writer_;
  bool replaced_partial_ = false, committed_ = false;
};

}  // namespace

void BindProfiles(nb::module_& module) {
  nb::class_<BoundProfileWriter>(module, "ProfileWriter",
                                 "Writes a profile (.dlprof) from arrays, step by step.")
      .def(nb::init<const std::string&, const Metadata&, const std::vector<std::string>&,
                    const std::vector<std::string>&, const std::string&, const std::string&,
                    const std::string&>(),
           nb::arg("path"), nb::arg("description") = Metadata{},
           nb::arg("formats") = std::vector<std::string>{},
           nb::arg("roundings") = std::vector<std::string>{}, nb::arg("subnormals") = "both",
           nb::arg("scales") = "", nb::arg("existing") = "replace",
           "The options are those of `dlsim profile`. `existing`: 'replace', or 'continue' behind "
           "the steps of a profile of that name, complete or not.")
      .def_prop_ro("steps", &BoundProfileWriter::Steps, "The numbers of the steps in the profile.")
      .def_prop_ro("replaced_partial", &BoundProfileWriter::replaced_partial,
                   "Whether an unfinished profile with other settings has been replaced.")
      .def("forget", &BoundProfileWriter::Forget, nb::arg("step"),
           "Removes `step` and all later steps.")
      .def(
          "append", &BoundProfileWriter::Append, nb::arg("step"), nb::arg("parts"),
          nb::sig(
              "def append(self, step: int, parts: Sequence[tuple[int, float, Mapping[str, str], "
              "Sequence[tuple[str, str, typing.Any]]]]) -> None"),
          "Profiles a step; `parts` has one (micro, grad_scale, metadata, tensors) per micro-step, "
          "or one with micro = -1; tensors are (name, role, array), float32, float64, float16 or "
          "bfloat16 in CPU memory, or instead of an array (device, address, type, shape): dense "
          "memory of a CUDA device, which counts it, or of the host with device = -1; steps must "
          "ascend.")
      .def("add", &BoundProfileWriter::Add, nb::arg("step"), nb::arg("part"),
           nb::sig("def add(self, step: int, part: tuple[int, float, Mapping[str, str], "
                   "Sequence[tuple[str, str, typing.Any]]]) -> None"),
           "Profiles one part of a step, which finish() writes, or more tensors of the part -1.")
      .def("finish", &BoundProfileWriter::Finish, "Writes the step whose parts were added.")
      .def("drop", &BoundProfileWriter::Drop, "Forgets the parts of a step that is not finished.")
      .def("commit", &BoundProfileWriter::Commit, "Completes the file.");
  module.def(
      "join_shards",
      [](const std::string& path, const std::string& output) { JoinShards(path, output); },
      nb::arg("path"), nb::arg("output"), nb::call_guard<nb::gil_scoped_release>(),
      "As `dlsim join-shards`.");
}

}  // namespace dlsim::python
