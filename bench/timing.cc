// SPDX-License-Identifier: Apache-2.0
#include "bench/timing.h"

#include <time.h>

#include <algorithm>
#include <cmath>
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

double Now(Clock clock) {
  timespec time = {};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Slice::Slice(Clock clock, std::function<void()> call, double seconds_per_call)
    : clock_(clock), call_(std::move(call)) {
  if (seconds_per_call > 0) {
    const double calls = std::ceil(kSliceSeconds / seconds_per_call);
    calls_ = static_cast<int>(std::min<double>(calls, kMaxCalls));
    return;
  }
  // Doubles the slice until it is long enough; this warms up, too.
  while (calls_ < kMaxCalls && Seconds() * calls_ < kSliceSeconds) calls_ *= 2;
}

double Slice::Seconds() const {
  const double begin = Now(clock_);
  for (int i = 0; i < calls_; ++i) call_();
  return (Now(clock_) - begin) / calls_;
}

PairedSeconds TimePaired(const Slice& kernel, const Slice& limit, double budget) {
  std::vector<double> kernel_seconds, limit_seconds;
  const double end = Now(Clock::kWall) + budget;
  do {
    kernel_seconds.push_back(kernel.Seconds());
    limit_seconds.push_back(limit.Seconds());
  } while (Now(Clock::kWall) < end && kernel_seconds.size() < kMaxPairs);
  return {LowerQuartile(std::move(kernel_seconds)), LowerQuartile(std::move(limit_seconds))};
}

}  // namespace dlsim::bench
