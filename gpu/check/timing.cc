// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/timing.h"

#include <algorithm>

#include "gpu/base/device_buffer.h"

namespace dlsim::gpu_check {
namespace {

double Median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

std::vector<double> MedianSeconds(std::span<const std::function<void()>> jobs, int rounds,
                                  gpu::Stream stream) {
  std::vector<std::vector<double>> times(jobs.size());
  gpu::OwnedEvent begin(gpu::Timing::kOn), end(gpu::Timing::kOn);
  for (int round = -1; round < rounds; ++round) {
    for (size_t j = 0; j < jobs.size(); ++j) {
      begin.Record(stream);
      jobs[j]();
      end.Record(stream);
      end.Wait();
      float milliseconds = 0;
      gpu::CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                     "cudaEventElapsedTime");
      if (round >= 0) times[j].push_back(double{milliseconds} * 1e-3);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_job : times) medians.push_back(Median(std::move(of_job)));
  return medians;
}

}  // namespace dlsim::gpu_check
