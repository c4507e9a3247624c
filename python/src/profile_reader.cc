// SPDX-License-Identifier: Apache-2.0
// Profiles as files hold them: dlsim._core.ProfileReader and dlsim._core.LoadedProfileStep.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/profile_file.h"
#include "python/src/bindings.h"
#include "python/src/recorded.h"
#include "sim/replay/profile_source.h"

namespace nb = nanobind;

namespace dlsim::python {

using namespace sim;

namespace {

// (elements, zeros, nan, inf, sum, largest magnitude of each sign, counts and sums of squares per
// sign and bin)
nb::tuple TupleOf(const Histogram& histogram, const HistogramEdges& edges) {
  const size_t bins = edges.bin_count();
  std::vector<int64_t> counts(2 * bins);
  std::vector<double> squares(2 * bins);
  std::array<float, 2> largest{};
  for (size_t s = 0; s < 2; ++s) {
    const SignHistogram& sign = histogram.signs[s];
    largest[s] = std::bit_cast<float>(sign.largest);
    for (const HistogramBin& bin : sign.bins) {
      const size_t at = s * bins + bin.bin;
      counts[at] = static_cast<int64_t>(bin.count);
      squares[at] =
          std::ldexp(static_cast<double>(bin.squares), 2 * QuantumExponent(edges.bits()[bin.bin]));
    }
  }
  return nb::make_tuple(
      histogram.elements, histogram.zeros, histogram.nan, histogram.inf, histogram.sum, largest[0],
      largest[1], ArrayOf(std::move(counts), {2, bins}), ArrayOf(std::move(squares), {2, bins}));
}

class LoadedProfileStep {
 public:
  LoadedProfileStep(ProfileStep step, std::shared_ptr<const ProfileReader> reader)
      : step_(std::move(step)), reader_(std::move(reader)) {}

  const ProfileStep& step() const { return step_; }

  nb::list Tensors() const {
    nb::list headers;
    for (const ProfileTensor& tensor : step_.tensors) {
      headers.append(HeaderOf(tensor.name, tensor.role, tensor.dtype, tensor.shape));
    }
    return headers;
  }

  nb::tuple HistogramAt(size_t part, size_t tensor) const {
    return TupleOf(step_.histograms.at(part).at(tensor), reader_->edges());
  }

  nb::tuple Exponents() const {
    return nb::make_tuple(Tensors(), ExponentCounts(step_, reader_->edges()));
  }

 private:
  ProfileStep step_;
  std::shared_ptr<const ProfileReader> reader_;
};

class BoundProfile {
 public:
  BoundProfile(const std::vector<nb::bytes>& paths, const std::string& tensors)
      : reader_(Open(PathsOf(paths))), tensors_(tensors) {}

  const ProfileReader& reader() const { return *reader_; }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> numbers(reader_->step_count());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = reader_->step_number(i);
    return numbers;
  }

  nb::ndarray<nb::numpy, float> Edges() const {
    std::vector<float> edges;
    for (const uint32_t bits : reader_->edges().bits()) edges.push_back(std::bit_cast<float>(bits));
    const size_t size = edges.size();
    return ArrayOf(std::move(edges), {size});
  }

  // True if no bin holds values of two exponents.
  bool TellsExponents() const {
    const std::span<const uint32_t> bits = reader_->edges().bits();
    return std::adjacent_find(bits.begin(), bits.end(), [](uint32_t from, uint32_t to) {
             return ExponentIndex(from) != ExponentIndex(to - 1);
           }) == bits.end();
  }

  LoadedProfileStep Load(size_t i) const {
    RequireStep(i);
    const nb::gil_scoped_release release;
    ProfileStep step = reader_->Load(i);
    KeepTensors(tensors_, step);
    return LoadedProfileStep(std::move(step), reader_);
  }

  // Histograms per part of the parameter gradients and of the activation gradients.
  nb::tuple Totals(size_t i) const {
    RequireStep(i);
    ProfileTotals totals;
    {
      const nb::gil_scoped_release release;
      totals = reader_->LoadTotals(i);
    }
    const auto list_of = [&](const std::vector<Histogram>& parts) {
      nb::list list;
      for (const Histogram& part : parts) list.append(TupleOf(part, reader_->edges()));
      return list;
    };
    return nb::make_tuple(list_of(totals.gradients), list_of(totals.activations));
  }

 private:
  static std::shared_ptr<const ProfileReader> Open(const std::vector<std::string>& paths) {
    const nb::gil_scoped_release release;
    return std::make_shared<const ProfileReader>(ProfileReader::Open(paths));
  }

  void RequireStep(size_t i) const {
    if (i >= reader_->step_count()) throw nb::index_error("step");
  }

  std::shared_ptr<const ProfileReader> reader_;
  std::string tensors_;
};

bool IsProfile(const nb::bytes& path) { return ProfileReader::IsProfile(PathsOf({path}).front()); }

}  // namespace

#define HISTOGRAM                                   \
  "tuple[int, int, int, int, float, float, float, " \
  "numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64]]"

void BindProfileReader(nb::module_& module) {
  nb::class_<LoadedProfileStep>(module, "LoadedProfileStep", "One step of a profile.")
      .def_prop_ro("number", [](const LoadedProfileStep& self) { return self.step().step; })
      .def("micro_steps", [](const LoadedProfileStep& self) { return self.step().micro_steps; })
      .def(
          "metadata", [](const LoadedProfileStep& self) { return DictOf(self.step().metadata); },
          nb::sig("def metadata(self) -> dict[str, str]"))
      .def("tensors", &LoadedProfileStep::Tensors,
           nb::sig("def tensors(self) -> list[tuple[str, str, str, tuple[int, ...]]]"))
      .def("histogram", &LoadedProfileStep::HistogramAt, nb::arg("part"), nb::arg("tensor"),
           nb::sig("def histogram(self, part: int, tensor: int) -> " HISTOGRAM),
           "(elements, zeros, nan, inf, sum, largest positive, largest negative magnitude, counts "
           "and sums of squares per sign and bin)")
      .def("exponents", &LoadedProfileStep::Exponents,
           nb::sig("def exponents(self) -> tuple[list[tuple[str, str, str, tuple[int, ...]]], "
                   "numpy.typing.NDArray[numpy.int64]]"),
           "As LoadedStep.exponents.");
  nb::class_<BoundProfile>(module, "ProfileReader", "One or several profiles (.dlprof) as one.")
      .def(nb::init<const std::vector<nb::bytes>&, const std::string&>(), nb::arg("paths"),
           nb::arg("tensors"))
      .def("steps", &BoundProfile::Steps)
      .def("edges", &BoundProfile::Edges,
           nb::sig("def edges(self) -> numpy.typing.NDArray[numpy.float32]"))
      .def("tells_exponents", &BoundProfile::TellsExponents,
           "Whether no bin holds values of two exponents.")
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
      .def("trace_bytes", [](const BoundProfile& self) { return self.reader().trace_bytes(); })
      .def("load", &BoundProfile::Load, nb::arg("i"))
      .def("totals", &BoundProfile::Totals, nb::arg("i"),
           nb::sig("def totals(self, i: int) -> tuple[list[" HISTOGRAM "], list[" HISTOGRAM "]]"),
           "Histograms per part, over parameter gradients and over activation gradients.");
  module.def("is_profile", IsProfile, nb::arg("path"), "Whether a file begins as a profile does.");
}

#undef HISTOGRAM

}  // namespace dlsim::python
