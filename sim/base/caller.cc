// SPDX-License-Identifier: Apache-2.0
#include "sim/base/caller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/sim/step.h"

namespace dlsim::sim {
namespace {

// Of a program that calls the library without one.
class Nobody final : public Caller {
 public:
  void Write(std::string_view) override {
    throw InputError("standard output", "the caller does not read it");
  }
  void Say(std::string_view) override {}
};

thread_local Caller* current = nullptr;

}  // namespace

bool Caller::TakeRows(const std::string&, const std::function<void(RowSink& row)>&) {
  return false;
}

std::unique_ptr<StepSource> Caller::GivenGradients(const std::string&) const { return nullptr; }

Caller& CurrentCaller() {
  static Nobody nobody;
  return current == nullptr ? nobody : *current;
}

CallerScope::CallerScope(Caller& caller) : before_(current) { current = &caller; }
CallerScope::~CallerScope() { current = before_; }

namespace {

// Until progress is shown.
std::chrono::milliseconds Wait(const Caller& caller, int where_replaced) {
  return caller.replaces_progress ? std::chrono::milliseconds(where_replaced)
                                  : std::chrono::seconds(10);
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
      next_(start_ + Wait(caller_, 500)) {}

Progress::~Progress() {
  if (drawn_) caller_.EndProgress();
}

void Progress::Update(uint64_t done) {
  caller_.CheckCanceled();
  const Clock::time_point now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + Wait(caller_, 200);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  caller_.ShowProgress(done, total_, Describe(label_, done, total_, unit_, seconds));
  drawn_ = true;
}

}  // namespace dlsim::sim
