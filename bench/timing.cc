// SPDX-License-Identifier: Apache-2.0
#include "bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace dlsim::bench {
namespace {

constexpr double kSliceSeconds = 5e-4;
constexpr int kMaxCalls = 1 << 20;
constexpr size_t kMaxPairs = 32;

double LowerQuartile(std::vector<double> values) {
  const auto quartile = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 4);
  std::nth_element(values.begin(), quartile, values.end());
  return *quartile;
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Slice::Slice(std::function<void()> call) : call_(std::move(call)) {
  // Doubles the slice until it is long enough; this warms up, too.
  while (calls_ < kMaxCalls && Seconds() * calls_ < kSliceSeconds) calls_ *= 2;
}

double Slice::Seconds() const {
  const double begin = Now();
  for (int i = 0; i < calls_; ++i) call_();
  return (Now() - begin) / calls_;
}

PairedSeconds TimePaired(const std::function<void()>& kernel, const std::function<void()>& limit,
                         double budget) {
  const Slice kernel_slice(kernel);
  const Slice limit_slice(limit);
  std::vector<double> kernel_seconds, limit_seconds;
  const double end = Now() + budget;
  do {
    kernel_seconds.push_back(kernel_slice.Seconds());
    limit_seconds.push_back(limit_slice.Seconds());
  } while (Now() < end && kernel_seconds.size() < kMaxPairs);
  return {LowerQuartile(std::move(kernel_seconds)), LowerQuartile(std::move(limit_seconds))};
}

}  // namespace dlsim::bench
