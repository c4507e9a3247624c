// SPDX-License-Identifier: Apache-2.0
#include "sim/step_queue.h"

#include <utility>

namespace dlsim {

void StepQueue::LoadAhead(size_t i) {
  if (i >= source_.step_count()) return;
  try {
    ahead_ = source_.Load(i);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::unique_ptr<GradientStep> StepQueue::Take(size_t i) {
  if (failure_) std::rethrow_exception(failure_);
  return ahead_ ? std::exchange(ahead_, nullptr) : source_.Load(i);
}

}  // namespace dlsim
