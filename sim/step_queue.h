// SPDX-License-Identifier: Apache-2.0
// Delivers the steps of a source in order, opening the next one ahead of time.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

namespace dlsim {

template <class Step>
class StepQueue {
 public:
  // `load` opens one of `count` steps.
  StepQueue(size_t count, std::function<Step(size_t)> load)
      : count_(count), load_(std::move(load)) {}

  // Loads step i, if there is one; a failure is kept for Take.
  void LoadAhead(size_t i) {
    if (i >= count_) return;
    try {
      ahead_.emplace(load_(i));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Returns step i, which is the one loaded ahead unless nothing was.
  Step Take(size_t i) {
    if (failure_) std::rethrow_exception(failure_);
    if (!ahead_) return load_(i);
    Step step = std::move(*ahead_);
    ahead_.reset();
    return step;
  }

 private:
  size_t count_;
  std::function<Step(size_t)> load_;
  std::optional<Step> ahead_;
  std::exception_ptr failure_;
};

}  // namespace dlsim
