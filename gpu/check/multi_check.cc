// SPDX-License-Identifier: Apache-2.0
// Many tensors of different sizes in one launch, as a training step has them.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/histogram.h"
#include "dlsim/gpu/measure.h"
#include "dlsim/ladder.h"
#include "gpu/check/bench_kernels.h"
#include "gpu/check/checks.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/encode_sweep.h"
#include "gpu/check/formats.h"
#include "gpu/check/timing.h"
#include "histogram_sums.h"

namespace dlsim::gpu_check {
namespace {

constexpr size_t kTensors = 300;
constexpr double kSmallest = 10, kLargest = 1e7;

// Sizes spread evenly over the logarithm, in an order that mixes small and large.
std::vector<uint64_t> Sizes(uint64_t most) {
  std::vector<uint64_t> sizes;
  const double largest = std::min(kLargest, static_cast<double>(std::max<uint64_t>(most, 10)));
  for (size_t i = 0; i < kTensors; ++i) {
    constexpr size_t kMixing = 7;  // has no factor in common with kTensors
    const double share = static_cast<double>(i * kMixing % kTensors) / (kTensors - 1);
    sizes.push_back(static_cast<uint64_t>(kSmallest * std::pow(largest / kSmallest, share)));
  }
  return sizes;
}

// Tensors one after another in one buffer, as optimizers keep them: at odd alignments.
struct Step {
  explicit Step(uint64_t most, gpu::Stream stream);

  std::vector<uint64_t> begins;
  std::vector<gpu::DeviceTensor> tensors;
  gpu::DeviceBuffer<float> values;
  gpu::DeviceBuffer<uint16_t> codes;
  std::vector<float> on_host;
};

Step::Step(uint64_t most, gpu::Stream stream) {
  uint64_t total = 0;
  const std::vector<uint64_t> sizes = Sizes(most);
  for (const uint64_t size : sizes) {
    begins.push_back(total);
    total += size;
  }
  values = gpu::DeviceBuffer<float>(total);
  codes = gpu::DeviceBuffer<uint16_t>(total);
  DrawOnDevice(DataSet::kGrad, 300, values.data(), total, stream);
  on_host = ToHost(values.data(), total, stream);
  for (size_t t = 0; t < kTensors; ++t) {
    gpu::DeviceTensor tensor;
    tensor.values = values.data() + begins[t];
    tensor.elements = sizes[t];
    tensor.codes = codes.data() + begins[t];
    tensor.random_stream = static_cast<uint32_t>(1000 + t);
    tensors.push_back(tensor);
  }
}

std::span<const float> ValuesOf(const Step& step, size_t t) {
  return std::span(step.on_host).subspan(step.begins[t], step.tensors[t].elements);
}

void CheckCodes(const Step& step, const gpu::TensorList& list, gpu::Stream stream, Report& report) {
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    const ArrayConversion how = {{kCb16, rounding}, 1.0f, {77, 0}, 0};
    gpu::Encode(how, list, stream);
    CheckResult result = {"multi", std::string("encode cb16 ") + RoundingName(rounding),
                          list.element_count(), ""};
    for (size_t t = 0; t < kTensors && result.problem.empty(); ++t) {
      const gpu::DeviceTensor& tensor = step.tensors[t];
      ArrayConversion of_tensor = how;
      of_tensor.random.stream = tensor.random_stream;
      const Comparison comparison =
          CompareOnDevice(of_tensor, static_cast<const float*>(tensor.values), tensor.codes,
                          tensor.elements, stream);
      if (comparison.mismatches == 0) continue;
      result.problem = "tensor " + std::to_string(t) + ", element " +
                       std::to_string(comparison.first_mismatch) + " and more";
    }
    report.Add(result);
  }
}

void CheckStatistics(const Step& step, const gpu::TensorList& list, gpu::Stream stream,
                     Report& report) {
  const Measurement questions[] = {{{kFp16}, 1024.0f, {}},
                                   {{kCb16, Rounding::kStochastic}, 1.0f, {78, 0}}};
  gpu::Measurer measurer(list, std::size(questions));
  measurer.Measure(questions, stream);
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  gpu::Counter counter(edges, list);
  counter.Count(stream);
  const std::vector<HistogramSums> histograms = counter.Take(stream);
  CheckResult measured = {"multi", "measure", std::size(questions) * list.element_count(), ""};
  CheckResult profiled = {"multi", "profile", list.element_count(), ""};
  for (size_t t = 0; t < kTensors; ++t) {
    const std::string where = "tensor " + std::to_string(t) + ": ";
    for (size_t q = 0; q < std::size(questions) && measured.problem.empty(); ++q) {
      Measurement question = questions[q];
      question.random.stream = step.tensors[t].random_stream;
      const std::string problem = Difference(measurer.host_results()[q * kTensors + t],
                                             MeasureReference(ValuesOf(step, t), question));
      if (!problem.empty()) measured.problem = where + problem;
    }
    if (!profiled.problem.empty()) continue;
    const std::string problem = Difference(histograms[t], CountReference(ValuesOf(step, t), edges));
    if (!problem.empty()) profiled.problem = where + problem;
  }
  report.Add(measured);
  report.Add(profiled);
}

// Times the list beside one tensor of as many elements.
void TimeLaunches(const Options& options, const Step& step, const gpu::TensorList& list,
                  gpu::Stream stream, Report& report) {
  gpu::DeviceTensor one = step.tensors[0];
  one.elements = list.element_count();
  const gpu::TensorList large({&one, 1});
  const ArrayConversion how = {{kCb16}};
  const Measurement question = {{kCb16}, 1024.0f, {}};
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  gpu::Measurer measure_list(list, 1), measure_large(large, 1);
  gpu::Counter count_list(edges, list), count_large(edges, large);
  const std::function<void()> jobs[] = {[&] { gpu::Encode(how, list, stream); },
                                        [&] { gpu::Encode(how, large, stream); },
                                        [&] {
                                          measure_list.Measure({&question, 1}, stream);
                                        },
                                        [&] {
                                          measure_large.Measure({&question, 1}, stream);
                                        },
                                        [&] { count_list.Count(stream); },
                                        [&] { count_large.Count(stream); }};
  const std::vector<double> seconds = MedianSeconds(jobs, options.rounds, stream);
  std::string note = std::to_string(kTensors) + " tensors in one launch, " +
                     std::to_string(list.element_count()) + " elements, to one tensor:";
  const char* names[] = {"encode", "measure", "profile"};
  for (size_t i = 0; i < std::size(names); ++i) {
    char text[80];
    std::snprintf(text, sizeof text, " %s x %.3f (%+.1f us)", names[i],
                  seconds[2 * i] / seconds[2 * i + 1], (seconds[2 * i] - seconds[2 * i + 1]) * 1e6);
    note += text;
  }
  report.AddNote(note);
}

}  // namespace

void CheckMultiTensor(const Options& options, Report& report) {
  const gpu::OwnedStream stream;
  const Step step(options.elements / 16, stream.get());
  const gpu::TensorList list(step.tensors);
  CheckCodes(step, list, stream.get(), report);
  CheckStatistics(step, list, stream.get(), report);
  TimeLaunches(options, step, list, stream.get(), report);
}

}  // namespace dlsim::gpu_check
