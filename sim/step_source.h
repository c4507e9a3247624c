// SPDX-License-Identifier: Apache-2.0
// Delivers the effective steps of a trace in order, opening the next one ahead of time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>

#include "dlsim/trace.h"

namespace dlsim {

// One or several recorded steps as one effective step.
class StepSource {
 public:
  // `accumulate_steps` as in ReplayOptions. Throws UsageError if it is below 1.
  StepSource(const TraceReader& trace, int64_t accumulate_steps);

  size_t count() const { return count_; }

  // Loads effective step i, if there is one; a failure is kept for Take.
  void LoadAhead(size_t i);

  // Returns effective step i, which is the one loaded ahead unless nothing was.
  TraceStep Take(size_t i);

 private:
  TraceStep Load(size_t i) const;

  const TraceReader& trace_;
  size_t steps_per_effective_ = 1;
  size_t count_ = 0;
  std::optional<TraceStep> ahead_;
  std::exception_ptr failure_;
};

}  // namespace dlsim
