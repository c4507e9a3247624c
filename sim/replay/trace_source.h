// SPDX-License-Identifier: Apache-2.0
// The gradients of a trace, of which several recorded steps may make one effective step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dlsim/sim/gradient_source.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

class TraceSource final : public GradientSource {
 public:
  // `trace` must live as long as this; `accumulate_steps` as in ReplayOptions. Throws UsageError if
  // it does not fit the trace.
  TraceSource(const TraceReader& trace, int64_t accumulate_steps);

  // Leaves out gradients of the loss itself from now on, with a note; not the only tensors.
  void LeaveOutLosses();

  const SourceFacts& facts() const override { return facts_; }
  size_t step_count() const override { return count_; }

  bool HasSmallSteps() const override;
  void ReadAhead(size_t i) const override;
  std::unique_ptr<GradientStep> Load(size_t i, StepNeeds needs) const override;

  // Number of effective step i, which is that of its last recorded step, and the paths of its files
  // in the order of its recordings.
  int64_t number(size_t i) const;
  std::vector<std::string> files(size_t i) const;

  // Opens an effective step as a step of a trace with micro-steps.
  TraceStep LoadStep(size_t i) const;

 private:
  const TraceReader& trace_;
  SourceFacts facts_;
  size_t steps_per_effective_ = 1;
  size_t count_ = 0;
  std::set<std::string> losses_;  // left out
};

}  // namespace dlsim::sim
