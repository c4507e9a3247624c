// SPDX-License-Identifier: Apache-2.0
// Measurements and histograms of arrays, against those of the host.
#include <algorithm>
#include <cstdio>
#include <random>

#include "check/checks.h"
#include "check/data_sets.h"
#include "check/device_arrays.h"
#include "check/formats.h"
#include "dlsim/gpu/histogram.h"
#include "dlsim/gpu/measure.h"
#include "dlsim/ladder.h"

namespace dlsim::gpu_check {
namespace {

// A set of tensors, on the host and as one list on the device.
struct TensorSet {
  TensorSet(std::string set_name, std::vector<HostTensor> tensors, gpu::Stream stream)
      : name(std::move(set_name)),
        on_host(std::move(tensors)),
        on_device(ToDevice(on_host, 0, stream)),
        list(on_device.tensors) {
    for (const HostTensor& tensor : on_host) values.push_back(ValuesOf(tensor));
  }

  std::string name;
  std::vector<HostTensor> on_host;
  DeviceTensors on_device;
  gpu::TensorList list;
  std::vector<std::vector<float>> values;  // of each tensor as float32
};

// The sets of an effort: made tensors, and those of traces if there are any.
template <class Check>
void ForEachSet(const Options& options, const Check& check) {
  const gpu::OwnedStream stream;
  const uint64_t most = std::min<uint64_t>(options.elements, uint64_t{1} << 22);
  check(TensorSet("made", CheckedTensors(most), stream.get()), stream.get());
  if (options.traces.empty()) return;
  check(TensorSet("traces", TraceTensors(options.traces), stream.get()), stream.get());
}

// Formats, modes and rules mixed, at scales that under- and overflow float32 itself, too.
std::vector<Measurement> Questions() {
  const auto question = [](const char* format, Rounding rounding, float scale,
                           Overflow overflow = Overflow::kInfinity,
                           Subnormals subnormals = Subnormals::kKeep) {
    const Conversion conversion = {ParseFormat(format).format, rounding, overflow, subnormals};
    return Measurement{conversion, scale, {99, 0}};
  };
  return {question("fp16", Rounding::kNearestEven, 1.0f),
          question("fp16", Rounding::kNearestEven, 65536.0f),
          question("bf16", Rounding::kNearestEven, 1.0f),
          question("cb16", Rounding::kNearestEven, 2e15f),
          question("fp16", Rounding::kTowardZero, 1024.0f, Overflow::kSaturate),
          question("cb16", Rounding::kNearestAway, 0x1p-14f, Overflow::kInfinity,
                   Subnormals::kFlushToZero),
          question("fp16", Rounding::kTowardPositive, 3.0f),
          question("bf16", Rounding::kTowardNegative, 0x1p-20f, Overflow::kSaturate),
          question("fp16", Rounding::kStochastic, 0.1f),
          question("cb16", Rounding::kStochastic, 4096.0f, Overflow::kSaturate,
                   Subnormals::kFlushToZero),
          question("fp8-e4m3", Rounding::kNearestEven, 16.0f),
          question("fp8-e5m2", Rounding::kStochastic, 1.0f),
          question("dlfloat16", Rounding::kNearestEven, 1e-30f),
          question("tf32", Rounding::kNearestEven, 1e30f),
          question("e8m15", Rounding::kStochastic, 0x1p-126f)};
}

std::string NameOf(const Measurement& question) {
  const Conversion& conversion = question.conversion;
  char text[64];
  std::snprintf(text, sizeof text, "e%dm%d * %g", conversion.format.exponent_bits,
                conversion.format.mantissa_bits, double{question.scale});
  return gpu_check::NameOf(text, conversion);
}

// Measures all tensors for all questions, as many at a time as `at_once`.
void MeasureSet(const TensorSet& set, std::span<const Measurement> questions, size_t at_once,
                gpu::Stream stream, Report& report) {
  gpu::Measurer measurer(set.list, at_once);
  const size_t tensors = set.on_host.size();
  for (size_t first = 0; first < questions.size(); first += at_once) {
    const auto some = questions.subspan(first, std::min(at_once, questions.size() - first));
    measurer.Measure(some, stream);
    gpu::CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (size_t q = 0; q < some.size(); ++q) {
      CheckResult result = {"measure", set.name + ", " + NameOf(some[q]), 0, ""};
      for (size_t t = 0; t < tensors; ++t) {
        Measurement question = some[q];
        question.random.stream = set.on_host[t].random_stream;
        const TensorStats expected = MeasureReference(set.values[t], question);
        result.compared += expected.elements;
        const std::string problem = Difference(measurer.host_results()[q * tensors + t], expected);
        if (problem.empty() || !result.problem.empty()) continue;
        result.problem = set.on_host[t].name + ": " + problem;
      }
      report.Add(result);
    }
  }
}

// Edges without any period, which kernels may find another way than those of a ladder.
HistogramEdges IrregularEdges() {
  std::mt19937_64 generator(4);
  std::vector<uint32_t> edges(1000);
  for (uint32_t& edge : edges) {
    edge = 1 + static_cast<uint32_t>(generator() % (codec::kInfinityBits - 1));
  }
  return HistogramEdges(std::move(edges));
}

void ProfileSet(const TensorSet& set, const std::string& edges_name, const HistogramEdges& edges,
                gpu::Stream stream, Report& report) {
  gpu::Counter counter(edges, set.list);
  for (const char* round : {"", ", again"}) {
    counter.Count(stream);
    const std::vector<HistogramSums> got = counter.Take(stream);
    CheckResult result = {"profile", set.name + ", " + edges_name + round, 0, ""};
    if (got.size() != set.on_host.size()) result.problem = "wrong number of results";
    for (size_t t = 0; t < set.on_host.size() && result.problem.empty(); ++t) {
      result.compared += set.values[t].size();
      const std::string problem = Difference(got[t], CountReference(set.values[t], edges));
      if (!problem.empty()) result.problem = set.on_host[t].name + ": " + problem;
    }
    report.Add(result);
  }
}

}  // namespace

void CheckMeasure(const Options& options, Report& report) {
  ForEachSet(options, [&](const TensorSet& set, gpu::Stream stream) {
    const std::vector<Measurement> questions = Questions();
    MeasureSet(set, questions, questions.size(), stream, report);
    MeasureSet(set, std::span(questions).first(2), 1, stream, report);
  });
}

void CheckProfile(const Options& options, Report& report) {
  const HistogramEdges ladder = EdgesOf(DefaultLadder());
  const HistogramEdges irregular = IrregularEdges();
  const HistogramEdges binades({});
  ForEachSet(options, [&](const TensorSet& set, gpu::Stream stream) {
    ProfileSet(set, "default ladder", ladder, stream, report);
    ProfileSet(set, "irregular edges", irregular, stream, report);
    ProfileSet(set, "powers of two", binades, stream, report);
  });
}

}  // namespace dlsim::gpu_check
