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

}  // namespace

Progress::Progress(uint64_t steps)
    : steps_(steps),
      caller_(CurrentCaller()),
      start_(Clock::now()),
      next_(start_ + Wait(caller_, 500)) {}

Progress::~Progress() {
  if (drawn_) caller_.EndProgress();
}

void Progress::Update(uint64_t done) {
  caller_.CheckCanceled();
  const Clock::time_point now = Clock::now();
  if (caller_.quiet || now < next_) return;
  next_ = now + Wait(caller_, 200);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(steps_);
  caller_.ShowProgress(done, steps_,
                       fmt::format("{} {:3.0f} %  {:.0f} s left", caller_.command, 100 * share,
                                   done == 0 ? 0 : seconds / share - seconds));
  drawn_ = true;
}

}  // namespace dlsim::sim
