// SPDX-License-Identifier: Apache-2.0
// A step that is profiled part by part, in memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "dlsim/ladder.h"
#include "dlsim/profile.h"
#include "python/src/profile_input.h"
#include "src/device/compute_device.h"

namespace dlsim::python {

class StepParts {
 public:
  // `settings` must live as long as this.
  explicit StepParts(const ProfileSettings& settings)
      : settings_(settings), edges_(EdgesOf(settings.ladder)) {}
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  const HistogramEdges& edges() const { return edges_; }
  bool empty() const { return !step_; }

  // Counts a micro-step, or tensors of the step as a whole; nothing of the arrays is held then.
  void Add(int64_t step, const Part& part);

  // Returns the step that the parts make, and forgets it. Throws UsageError if there is none.
  ProfileStep Take();
  void Drop() { step_.reset(); }

 private:
  ComputeDevice& Opened(int device);
  void CheckMicro(int64_t micro) const;

  const ProfileSettings& settings_;
  HistogramEdges edges_;
  std::optional<ProfileStep> step_;
  std::map<int, std::unique_ptr<ComputeDevice>> devices_;  // that have counted
};

}  // namespace dlsim::python
