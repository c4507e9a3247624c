// SPDX-License-Identifier: Apache-2.0
#include "sim/base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dlsim::sim {
namespace {

// Until progress is shown first, and then again.
std::chrono::milliseconds FirstWait(const Caller& caller) {
  return caller.replaces_progress ? std::chrono::milliseconds(500) : std::chrono::seconds(10);
}
std::chrono::milliseconds NextWait(const Caller& caller) {
  return caller.replaces_progress ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
}

std::string Describe(const std::string& label, uint64_t done, uint64_t total, ProgressUnit unit,
                     double seconds) {
  const double fraction =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  std::string speed;
  if (unit == ProgressUnit::kBytes) speed = fmt::format("{:.2f} GB/s  ", rate / 1e9);
  if (unit == ProgressUnit::kPolicySteps) {
    speed = fmt::format("{:.3g} million policy-steps/s  ", rate / 1e6);
  }
  return fmt::format("{} {:3.0f} %  {}{:.0f} s left", label, 100 * fraction, speed, left);
}

}  // namespace

Progress::Progress(std::string label, uint64_t total, ProgressMode mode, ProgressUnit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      caller_(CurrentCaller()),
      quiet_(mode == ProgressMode::kQuiet),
      start_(Clock::now()),
      next_(start_ + FirstWait(caller_)) {}

Progress::~Progress() {
  if (drawn_) caller_.EndProgress();
}

void Progress::Update(uint64_t done) {
  caller_.CheckCanceled();
  const Clock::time_point now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + NextWait(caller_);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  caller_.ShowProgress(done, total_, Describe(label_, done, total_, unit_, seconds));
  drawn_ = true;
}

}  // namespace dlsim::sim
