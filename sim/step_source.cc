// SPDX-License-Identifier: Apache-2.0
#include "sim/step_source.h"

#include <string>
#include <utility>

#include "dlsim/error.h"

namespace dlsim {
namespace {

bool HasMicroSteps(const TraceStep& step) {
  return step.recordings.size() > 1 || step.recordings.front().micro >= 0;
}

Error NotTheRecorded(size_t asked, size_t recorded) {
  return UsageError("grad_accum_steps", "the trace is recorded with micro-steps of its own",
                    std::to_string(recorded), std::to_string(asked));
}

}  // namespace

StepSource::StepSource(const TraceReader& trace, int64_t accumulate_steps) : trace_(trace) {
  if (accumulate_steps < 1) {
    throw UsageError("grad_accum_steps", "not a number of steps", "1 or more",
                     std::to_string(accumulate_steps));
  }
  const size_t asked = static_cast<size_t>(accumulate_steps);
  if (asked > 1) {
    const TraceStep first = trace.Load(0);
    if (!HasMicroSteps(first)) {
      steps_per_effective_ = asked;
    } else if (first.recordings.size() != asked) {
      throw NotTheRecorded(asked, first.recordings.size());
    }
  }
  count_ = trace.step_count() / steps_per_effective_;
  if (count_ == 0) {
    throw UsageError("grad_accum_steps", "more than the trace has steps",
                     "at most " + std::to_string(trace.step_count()), std::to_string(asked));
  }
}

TraceStep StepSource::Load(size_t i) const {
  if (steps_per_effective_ == 1) return trace_.Load(i);
  TraceStep effective;
  for (size_t k = 0; k < steps_per_effective_; ++k) {
    TraceStep step = trace_.Load(i * steps_per_effective_ + k);
    if (HasMicroSteps(step)) throw NotTheRecorded(steps_per_effective_, step.recordings.size());
    Recording& recording = step.recordings.front();
    recording.micro = static_cast<int64_t>(k);
    recording.grad_scale *= static_cast<float>(steps_per_effective_);
    effective.step = step.step;
    effective.recordings.push_back(std::move(recording));
  }
  return effective;
}

void StepSource::LoadAhead(size_t i) {
  if (i >= count_) return;
  try {
    ahead_ = Load(i);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

TraceStep StepSource::Take(size_t i) {
  if (failure_) std::rethrow_exception(failure_);
  if (!ahead_) return Load(i);
  TraceStep step = std::move(*ahead_);
  ahead_.reset();
  return step;
}

}  // namespace dlsim
