// SPDX-License-Identifier: Apache-2.0
// Delivers the steps of a source in order, opening the next one ahead of time.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "dlsim/gradient_source.h"

namespace dlsim {

class StepQueue {
 public:
  explicit StepQueue(const GradientSource& source) : source_(source) {}

  // Loads step i, if there is one; a failure is kept for Take.
  void LoadAhead(size_t i);

  // Returns step i, which is the one loaded ahead unless nothing was.
  std::unique_ptr<GradientStep> Take(size_t i);

 private:
  const GradientSource& source_;
  std::unique_ptr<GradientStep> ahead_;
  std::exception_ptr failure_;
};

}  // namespace dlsim
