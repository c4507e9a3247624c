// SPDX-License-Identifier: Apache-2.0
// Times many tensors of different sizes in one launch, as a training step has them.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/measure.h"
#include "gpu/check/bench_kernels.h"
#include "gpu/check/checks.h"
#include "gpu/check/ladder_count.h"
#include "gpu/check/timing.h"

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
  for (size_t t = 0; t < kTensors; ++t) {
    gpu::DeviceTensor tensor;
    tensor.values = values.data() + begins[t];
    tensor.elements = sizes[t];
    tensor.codes = codes.data() + begins[t];
    tensors.push_back(tensor);
  }
}

// Times the list beside one tensor of as many elements.
void TimeLaunches(const Options& options, const Step& step, const gpu::TensorList& list,
                  gpu::Stream stream, Report& report) {
  gpu::DeviceTensor one = step.tensors[0];
  one.elements = list.element_count();
  const gpu::TensorList large({&one, 1});
  const ArrayConversion how = {{kCb16}};
  const Measurement question = {{kCb16}, 1024.0f, {}};
  const LadderCount count;
  gpu::Measurer measure_list(list, 1), measure_large(large, 1);
  const gpu::CountMemory tables_of_list = count.TablesFor(list), tables = count.TablesFor(large);
  const std::function<void()> jobs[] = {[&] { gpu::Encode(how, list, stream); },
                                        [&] { gpu::Encode(how, large, stream); },
                                        [&] {
                                          measure_list.Measure({&question, 1}, stream);
                                        },
                                        [&] {
                                          measure_large.Measure({&question, 1}, stream);
                                        },
                                        [&] { count.Launch(list, tables_of_list, stream); },
                                        [&] { count.Launch(large, tables, stream); }};
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

void TimeLaunches(const Options& options, Report& report) {
  const gpu::OwnedStream stream;
  const Step step(options.elements / 16, stream.get());
  const gpu::TensorList list(step.tensors);
  TimeLaunches(options, step, list, stream.get(), report);
}

}  // namespace dlsim::gpu_check
