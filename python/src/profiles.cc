// SPDX-License-Identifier: Apache-2.0
// Profiles made from arrays in memory: dlsim._core.ProfileWriter.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
// Name, role ("grad" or "act_grad"), values.
using NamedArray = std::tuple<std::string, std::string, Array>;
using Metadata = std::map<std::string, std::string>;
// Number of the micro-step (-1 = none), loss scale that the values carry, metadata, tensors.
using Part = std::tuple<int64_t, float, Metadata, std::vector<NamedArray>>;

DType DTypeOf(const std::string& name, const Array& array) {
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

TraceTensor TensorOf(const NamedArray& named) {
  const auto& [name, role, array] = named;
  TraceTensor tensor;
  tensor.name = name;
  tensor.role = role == RoleName(Role::kActGrad) ? Role::kActGrad : Role::kGrad;
  tensor.dtype = DTypeOf(name, array);
  for (size_t axis = 0; axis < array.ndim(); ++axis) tensor.shape.push_back(array.shape(axis));
  tensor.elements = array.size();
  tensor.mapped = static_cast<const std::byte*>(array.data());
  return tensor;
}

// Name, role, finite float32 values, and how often each occurs.
using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using CountedArray = std::tuple<std::string, std::string, Values, Counts>;

// A profile adds in integers that hold this many of the largest significands.
constexpr uint64_t kMostCounted = uint64_t{1} << 40;

HistogramSums SumsOf(const std::string& name, const Values& values, const Counts& counts,
                     const HistogramEdges& edges) {
  if (values.size() != counts.size()) {
    throw UsageError(Quoted(name), "values and counts differ in number",
                     std::to_string(values.size()), std::to_string(counts.size()));
  }
  std::map<size_t, HistogramSums::Bin> bins[2];
  HistogramSums sums;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t count = counts.data()[i];
    const uint32_t bits = std::bit_cast<uint32_t>(values.data()[i]);
    const uint32_t magnitude = bits & ~codec::kSignBit;
    if (count > kMostCounted - sums.elements) {
      throw UsageError(Quoted(name), "too many elements", std::to_string(kMostCounted), "more");
    }
    sums.elements += count;
    if (count == 0) continue;
    if (magnitude == 0) {
      sums.zeros += count;
    } else if (magnitude > codec::kInfinityBits) {
      sums.nan += count;
    } else if (magnitude == codec::kInfinityBits) {
      sums.inf += count;
    } else {
      const size_t sign = bits >> 31;
      const size_t bin = edges.BinOf(magnitude);
      const uint64_t significand = Significand(magnitude);
      HistogramSums::Bin& of_bin = bins[sign][bin];
      of_bin.bin = static_cast<uint32_t>(bin);
      of_bin.count += count;
      of_bin.significands += count * significand;
      of_bin.squares += static_cast<uint128_t>(count) * (significand * significand);
      sums.signs[sign].largest = std::max(sums.signs[sign].largest, magnitude);
    }
  }
  for (size_t sign = 0; sign < 2; ++sign) {
    for (const auto& [bin, of_bin] : bins[sign]) sums.signs[sign].bins.push_back(of_bin);
  }
  return sums;
}

Recording RecordingOf(const Part& part) {
  const auto& [micro, grad_scale, metadata, arrays] = part;
  Recording recording;
  recording.place = "memory";
  recording.micro = micro;
  recording.grad_scale = grad_scale;
  recording.metadata = metadata;
  for (const NamedArray& array : arrays) {
    recording.tensors.push_back(TensorOf(array));
    recording.file_bytes += std::get<2>(array).nbytes();
  }
  return recording;
}

// Writes a profile step by step. Safe after a crash: see ProfileWriter.
class BoundProfileWriter {
 public:
  BoundProfileWriter(const std::string& path, const Metadata& description) {
    settings_.ladder = DefaultLadder();
    settings_.description = description;
    edges_ = std::make_unique<HistogramEdges>(EdgesOf(settings_.ladder));
    writer_ = std::make_unique<ProfileWriter>(path, settings_, *edges_,
                                              ProfileWriter::Existing::kReplace);
  }

  void Append(int64_t step, const std::vector<Part>& parts) {
    TraceStep trace_step;
    trace_step.step = step;
    for (const Part& part : parts) trace_step.recordings.push_back(RecordingOf(part));
    nb::gil_scoped_release release;
    writer_->Append(EncodeStep(ProfileOf(trace_step, *edges_, {}), *edges_));
  }

  void AppendCounts(int64_t step, const Metadata& metadata,
                    const std::vector<CountedArray>& arrays) {
    ProfileStep profile;
    profile.step = step;
    profile.micro_steps = {-1};
    profile.metadata = metadata;
    profile.files = {{.name = "memory", .bytes = 0}};
    std::vector<Histogram>& histograms = profile.histograms.emplace_back();
    for (const auto& [name, role, values, counts] : arrays) {
      const HistogramSums sums = SumsOf(name, values, counts, *edges_);
      ProfileTensor& tensor = profile.tensors.emplace_back();
      tensor.name = name;
      tensor.role = role == RoleName(Role::kActGrad) ? Role::kActGrad : Role::kGrad;
      tensor.shape = {sums.elements};
      histograms.push_back(sums.ToHistogram(*edges_));
      profile.files[0].bytes += sums.elements * sizeof(float);
    }
    writer_->Append(EncodeStep(profile, *edges_));
  }

  void Commit() {
    nb::gil_scoped_release release;
    writer_->Commit();
  }

 private:
  ProfileSettings settings_;
  std::unique_ptr<HistogramEdges> edges_;
  std::unique_ptr<ProfileWriter> writer_;
};

}  // namespace

void BindProfiles(nb::module_& module) {
  nb::class_<BoundProfileWriter>(module, "ProfileWriter",
                                 "Writes a profile (.dlprof) from arrays, step by step.")
      .def(nb::init<const std::string&, const Metadata&>(), nb::arg("path"),
           nb::arg("description") = Metadata{})
      .def(
          "append", &BoundProfileWriter::Append, nb::arg("step"), nb::arg("parts"),
          nb::sig(
              "def append(self, step: int, parts: Sequence[tuple[int, float, Mapping[str, str], "
              "Sequence[tuple[str, str, typing.Any]]]]) -> None"),
          "Profiles a step; `parts` has one (micro, grad_scale, metadata, tensors) per micro-step, "
          "or one with micro = -1; tensors are (name, role, array).")
      .def("append_counts", &BoundProfileWriter::AppendCounts, nb::arg("step"), nb::arg("metadata"),
           nb::arg("tensors"),
           "Profiles a step of tensors (name, role, values, counts): float32 values, and as uint64 "
           "how often each of them occurs.")
      .def("commit", &BoundProfileWriter::Commit, "Completes the file.");
}

}  // namespace dlsim::python
