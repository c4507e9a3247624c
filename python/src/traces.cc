// SPDX-License-Identifier: Apache-2.0
// Recorded gradients: dlsim._core.TraceReader and dlsim._core.LoadedStep.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/step_tables.h"
#include "dlsim/trace.h"
#include "python/src/bindings.h"
#include "python/src/recorded.h"

namespace dlsim::python {
namespace {

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

RankReduction ParseRanks(const std::string& name) {
  if (const std::optional<RankReduction> known = ValueNamed<RankReduction>(name)) return *known;
  throw UsageError("ranks", "unknown reduction", "'mean' or 'sum'", Quoted(name));
}

std::optional<DType> ParseVoid2(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "bf16") return DType::kBF16;
  throw UsageError("npy_void2", "unknown type", "'bf16' or None", Quoted(*name));
}

// A step with the lock of its trace: steps of one file may share what they read from.
class LoadedStep {
 public:
  LoadedStep(TraceStep step, std::shared_ptr<std::mutex> reading)
      : step_(std::move(step)), reading_(std::move(reading)) {}

  int64_t number() const { return step_.step; }

  // (place, micro, grad_scale, metadata, [header of each tensor])
  nb::list Recordings() const {
    nb::list list;
    for (const Recording& recording : step_.recordings) {
      nb::list headers;
      for (const TraceTensor& tensor : recording.tensors) {
        headers.append(HeaderOf(*tensor.info));
      }
      list.append(nb::make_tuple(TextOf(recording.place), recording.micro, recording.grad_scale,
                                 DictOf(recording.metadata), headers));
    }
    return list;
  }

  void Read(size_t recording, size_t tensor, const Floats& out) const {
    Visit(recording, tensor, out, [](std::span<const float> values, float* to) {
      std::copy(values.begin(), values.end(), to);
    });
  }

  // In float32, in the environment in which dlsim adds micro-steps.
  void Add(size_t recording, size_t tensor, const Floats& out) const {
    Visit(recording, tensor, out, [](std::span<const float> values, float* to) {
      for (size_t i = 0; i < values.size(); ++i) to[i] += values[i];
    });
  }

  // Names in the order of the rows, roles, and the counts.
  nb::tuple Exponents() const {
    StepTables counted;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(*reading_);
      counted = TabulateStep(step_, {});
    }
    return nb::make_tuple(HeadersOf(counted.tensors), ExponentCounts(counted));
  }

 private:
  // Calls visit(values, to) for the chunks of a tensor and their places in `out`.
  template <class Visitor>
  void Visit(size_t recording, size_t tensor, const Floats& out, const Visitor& visit) const {
    const Recording& from = step_.recordings.at(recording);
    const TraceTensor& values = from.tensors.at(tensor);
    if (out.size() != values.elements) {
      throw UsageError("out", "bad size", std::to_string(values.elements) + " elements",
                       std::to_string(out.size()));
    }
    float* const to = out.data();
    const nb::gil_scoped_release release;
    const std::lock_guard lock(*reading_);
    VisitValues(from, values,
                [&](uint64_t begin, std::span<const float> chunk) { visit(chunk, to + begin); });
  }

  TraceStep step_;
  std::shared_ptr<std::mutex> reading_;
};

class BoundTrace {
 public:
  BoundTrace(const std::vector<nb::bytes>& paths, const std::string& tensors,
             const std::string& ranks, const std::optional<std::string>& npy_void2)
      : reader_(Open(
            PathsOf(paths),
            {.tensors = tensors, .npy_void2 = ParseVoid2(npy_void2), .ranks = ParseRanks(ranks)})) {
  }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> numbers(reader_.step_count());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = reader_.step_number(i);
    return numbers;
  }

  nb::list Files(size_t i) const {
    RequireStep(i);
    nb::list files;
    for (const std::string& path : reader_.files(i)) files.append(TextOf(path));
    return files;
  }

  nb::list Notes() const {
    nb::list notes;
    for (const std::string& note : reader_.notes()) notes.append(TextOf(note));
    return notes;
  }

  const TraceReader& reader() const { return reader_; }

  LoadedStep Load(size_t i) const {
    RequireStep(i);
    const nb::gil_scoped_release release;
    const std::lock_guard lock(*reading_);
    return LoadedStep(reader_.Load(i), reading_);
  }

 private:
  static TraceReader Open(const std::vector<std::string>& paths, const TraceOptions& options) {
    const nb::gil_scoped_release release;
    return TraceReader::Open(paths, options);
  }

  void RequireStep(size_t i) const {
    if (i >= reader_.step_count()) throw nb::index_error("step");
  }

  TraceReader reader_;
  std::shared_ptr<std::mutex> reading_ = std::make_shared<std::mutex>();
};

}  // namespace

void BindTraces(nb::module_& module) {
  nb::class_<LoadedStep>(module, "LoadedStep", "One step of a trace, its tensors not yet read.")
      .def_prop_ro("number", &LoadedStep::number)
      .def("recordings", &LoadedStep::Recordings,
           nb::sig("def recordings(self) -> list[tuple[str, int, float, dict[str, str], "
                   "list[tuple[str, str, str, tuple[int, ...]]]]]"),
           "(place, micro-step or -1, grad_scale, metadata, [(name, role, type, shape)]) each.")
      .def("read", &LoadedStep::Read, nb::arg("recording"), nb::arg("tensor"), nb::arg("out"),
           "Fills `out` with the unscaled float32 values of one tensor of one recording.")
      .def("add", &LoadedStep::Add, nb::arg("recording"), nb::arg("tensor"), nb::arg("out"),
           "Adds them to `out`.")
      .def("exponents", &LoadedStep::Exponents,
           nb::sig("def exponents(self) -> tuple[list[tuple[str, str, str, tuple[int, ...]]], "
                   "numpy.typing.NDArray[numpy.int64]]"),
           "The tensors, and of each a row of counts over its recordings: per exponent from -149 "
           "to 127, zeros, NaN, infinities, elements.");
  nb::class_<BoundTrace>(module, "TraceReader", "The list of a trace's steps.")
      .def(nb::init<const std::vector<nb::bytes>&, const std::string&, const std::string&,
                    const std::optional<std::string>&>(),
           nb::arg("paths"), nb::arg("tensors"), nb::arg("ranks"), nb::arg("npy_void2").none())
      .def("steps", &BoundTrace::Steps)
      .def("files", &BoundTrace::Files, nb::arg("i"),
           nb::sig("def files(self, i: int) -> list[str]"))
      .def("notes", &BoundTrace::Notes, nb::sig("def notes(self) -> list[str]"))
      .def(
          "description", [](const BoundTrace& self) { return DictOf(self.reader().description()); },
          nb::sig("def description(self) -> dict[str, str]"))
      .def("file_bytes", [](const BoundTrace& self) { return self.reader().file_bytes(); })
      .def("load", &BoundTrace::Load, nb::arg("i"));
}

}  // namespace dlsim::python
