// SPDX-License-Identifier: Apache-2.0
// Measurements and histograms of arrays, against those of the host.
#include <algorithm>
#include <cstdio>
#include <random>
#include <span>

#include "dlsim/gpu/histogram.h"
#include "dlsim/gpu/measure.h"
#include "dlsim/ladder.h"
#include "gpu/check/checks.h"
#include "gpu/check/data_sets.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/formats.h"
#include "histogram_sums.h"
#include "parallel.h"

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

// What the host finds, on all threads: most tensors are too small for several.
std::vector<TensorStats> MeasureOnHost(const TensorSet& set, const Measurement& question) {
  std::vector<TensorStats> results(set.values.size());
  ParallelFor(results.size(), [&](size_t t) {
    Measurement of_tensor = question;
    of_tensor.random.stream = set.on_host[t].random_stream;
    results[t] = MeasureReference(set.values[t], of_tensor);
  });
  return results;
}

std::vector<HistogramSums> CountOnHost(const TensorSet& set, const HistogramEdges& edges) {
  std::vector<HistogramSums> results(set.values.size());
  ParallelFor(results.size(), [&](size_t t) { results[t] = CountReference(set.values[t], edges); });
  return results;
}

// Compares one result per tensor.
template <class Result>
std::string FirstDifference(const TensorSet& set, std::span<const Result> got,
                            const std::vector<Result>& expected) {
  if (got.size() != expected.size()) return "wrong number of results";
  for (size_t t = 0; t < got.size(); ++t) {
    const std::string problem = Difference(got[t], expected[t]);
    if (!problem.empty()) return set.on_host[t].name + ": " + problem;
  }
  return "";
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
      const auto got = measurer.host_results().subspan(q * tensors, tensors);
      report.Add({"measure", set.name + ", " + NameOf(some[q]), set.list.element_count(),
                  FirstDifference(set, got, MeasureOnHost(set, some[q]))});
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

// Counts twice: the second time nothing of the first is left.
void ProfileSet(const TensorSet& set, const std::string& edges_name, const HistogramEdges& edges,
                gpu::Stream stream, Report& report) {
  const std::vector<HistogramSums> expected = CountOnHost(set, edges);
  gpu::Counter counter(edges, set.list);
  for (const char* round : {"", ", again"}) {
    counter.Count(stream);
    const std::vector<HistogramSums> got = counter.Take(stream);
    report.Add({"profile", set.name + ", " + edges_name + round, set.list.element_count(),
                FirstDifference<HistogramSums>(set, got, expected)});
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
