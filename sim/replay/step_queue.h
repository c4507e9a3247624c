// SPDX-License-Identifier: Apache-2.0
// Delivers the steps of a source in order, opening the next one ahead of time.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "src/base/side_task.h"

namespace dlsim::sim {

template <class Step>
class StepQueue {
 public:
  // `load` opens one of `count` steps.
  StepQueue(size_t count, std::function<Step(size_t)> load)
      : count_(count), load_(std::move(load)) {}

  // Returns step i, which is the one loaded ahead unless nothing was.
  Step Take(size_t i) {
    if (failure_) std::rethrow_exception(failure_);
    if (!ahead_) {
      finished_.reset();
      return load_(i);
    }
    Step step = std::move(*ahead_);
    ahead_.reset();
    return step;
  }

  // Takes back a step, to be closed during later work: closing many files takes long.
  void GiveBack(Step step) { finished_ = std::move(step); }

  // Calls work() and meanwhile closes what was given back and loads step i, if there is one; a
  // failure to load is kept for Take.
  template <class Work>
  void LoadDuring(size_t i, const Work& work) {
    const auto close_and_load = [&] {
      finished_.reset();
      LoadAhead(i);
    };
    RunWithSideTask(close_and_load, work);
  }

 private:
  void LoadAhead(size_t i) {
    if (i >= count_) return;
    try {
      ahead_.emplace(load_(i));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  size_t count_;
  std::function<Step(size_t)> load_;
  std::optional<Step> ahead_, finished_;
  std::exception_ptr failure_;
};

}  // namespace dlsim::sim
