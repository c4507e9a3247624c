// SPDX-License-Identifier: Apache-2.0
#include "sim/base/caller.h"

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

}  // namespace dlsim::sim
