// SPDX-License-Identifier: Apache-2.0
// Gathers, step by step, whether forward tensors fit a format. What is kept does not grow with the
// steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "dlsim/codec.h"
#include "dlsim/measure_step.h"
#include "dlsim/sim/forward.h"
#include "sim/base/named_list.h"

namespace dlsim::sim {

// Returns how many binades lie between a magnitude and the largest finite value of the format:
// negative if the magnitude overflows, not negative if it fits, infinite for 0.
double ForwardHeadroom(const Conversion& conversion, float absmax);

// Forward tensors of a step: those that autocast keeps in float32, those whose overflow in fp16
// changes nothing, and those that may vanish.
struct ListedTensors {
  std::set<std::string> float32, harmless, slight;
};

// The forward tensors of one conversion.
class ForwardTally {
 public:
  ForwardTally(const Conversion& conversion, Recipe recipe);

  // What to measure the forward tensors of a step with, at scale 1.
  const Conversion& conversion() const { return conversion_; }

  // Takes over a step: its forward tensors and their counters over the parts. Returns those that
  // overflow for the first time, and whose values that do are all the same but for the sign; empty
  // at nearly every step.
  std::set<std::string> Add(int64_t step, std::span<const StepTensor> tensors,
                            std::span<const TensorStats> totals, const ListedTensors& listed);

  // Takes over the step's counters in rounding toward +infinity, where no negative value overflows:
  // which of the tensors that Add returned overflow by a negative constant. One that only hides
  // scores is forgotten.
  void NameConstants(const std::set<std::string>& suspects, std::span<const StepTensor> tensors,
                     std::span<const TensorStats> rounded_up);

  // Returns what is to be said of Role::kAct or of Role::kValue.
  ForwardVerdict VerdictOn(Role role) const;

 private:
  struct OfRole {
    NamedList<ForwardTensor> tensors;
    std::set<std::string> kept_in_float32;
    std::optional<LossGrowth> loss_growth;
    size_t steps = 0;
  };

  bool ChangesNothing(const std::string& name, const TensorStats& stats,
                      const ListedTensors& listed) const;
  OfRole& Of(Role role) { return role == Role::kValue ? values_ : outputs_; }
  bool Count(int64_t step, const TensorStats& stats, ForwardTensor& tensor) const;

  Conversion conversion_;
  Recipe recipe_;
  float largest_that_fits_;
  OfRole outputs_, values_;
  std::map<std::string, ForwardTensor> before_;  // the step, of what may hide scores
};

}  // namespace dlsim::sim
