// SPDX-License-Identifier: Apache-2.0
// Counts the forward pass of the runs of a replay, which no policy changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/base/named_list.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// The forward pass of one run.
class ForwardCounter {
 public:
  // Asks for the forward tensors of a step in the run's conversion.
  void Ask(const Conversion& conversion, StepQuestions& questions) {
    asked_ = questions.AddForward(conversion);
  }

  // Asks for nothing.
  void Rest() { asked_ = std::nullopt; }

  // Returns what it was told of the forward tensors, in their order.
  std::span<const TensorAnswer> Answers(const StepMeasurement& forward) const {
    return asked_ ? std::span<const TensorAnswer>(forward.answers[*asked_])
                  : std::span<const TensorAnswer>();
  }

  // Counts what it asked for.
  void Advance(int64_t step, const StepMeasurement& forward);

  ForwardPass Take() {
    pass_.tensors = tensors_.Take();
    return std::move(pass_);
  }

 private:
  std::optional<size_t> asked_;  // the place of the answer
  ForwardPass pass_;
  NamedList<ReplayTensor> tensors_;
};

}  // namespace dlsim::sim
