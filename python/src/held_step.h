// SPDX-License-Identifier: Apache-2.0
// One step of a training as the gradients of a command: what a recorder's watch asks about.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/gradient_source.h"
#include "python/src/step_parts.h"

namespace dlsim::python {

class HeldStep {
 public:
  // Counts for one answer in each of the formats; the rest is as `dlsim profile` has it.
  explicit HeldStep(const std::vector<std::string>& formats);

  StepParts& parts() { return parts_; }

  // Takes the step out of the parts, without gradients of the loss itself. This must live as long
  // as what is returned. Throws UsageError without a step.
  std::unique_ptr<sim::GradientSource> Take();

 private:
  ProfileSettings settings_;
  StepParts parts_;
};

}  // namespace dlsim::python
