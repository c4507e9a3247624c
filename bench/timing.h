// SPDX-License-Identifier: Apache-2.0
// Times short slices of work and compares a kernel with its limit, on machines where others work.
#pragma once

#include <cstdint>
#include <functional>

namespace dlsim::bench {

// What seconds mean: those of the wall, or those that the calling thread was running, in which the
// time that others had its core does not count. The latter is for work on one thread.
enum class Clock : uint8_t { kWall, kThread };

// Repeats a call for about half a millisecond at a time: short enough to find slices that nobody
// disturbs, long enough for the clock.
class Slice {
 public:
  // `seconds_per_call` is an estimate; without one, calls are made to find it.
  Slice(Clock clock, std::function<void()> call, double seconds_per_call = 0);

  // Runs a slice and returns seconds per call.
  double Seconds() const;

 private:
  Clock clock_;
  std::function<void()> call_;
  int calls_ = 1;
};

// Lower quartiles of seconds per call.
struct PairedSeconds {
  double kernel = 0;
  double limit = 0;
};

// Times slices of a kernel and of its limit in turn for about `budget` seconds, at least one pair
// and at most 32. Whoever else works on the machine slows both down alike, and few slices.
PairedSeconds TimePaired(const Slice& kernel, const Slice& limit, double budget);

// Seconds of a clock that never goes back.
double Now(Clock clock);

}  // namespace dlsim::bench
