// SPDX-License-Identifier: Apache-2.0
// What single tensors lose over the steps of many runs. Runs that went the same way share it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dlsim/sim/replay_tensor.h"

namespace dlsim::sim {

// What TensorRecords::kHarm keeps of a tensor; see ReplayTensor.
struct TensorLoss {
  HarmOverSteps harm = {};
  uint32_t nonzero_steps = 0, noise_steps = 0;

  bool noise() const { return 2 * uint64_t{noise_steps} > nonzero_steps; }
};

// By place of the tensor; null before the first step.
using LossList = std::shared_ptr<std::vector<TensorLoss>>;

// The losses after one step, of the runs that took it so far.
class SharedLosses {
 public:
  // What decides what a step adds.
  struct Way {
    size_t conversion;          // a number for each
    uint64_t scale;             // its bits
    std::vector<bool> skipped;  // as a whole, and by optimizer

    auto operator<=>(const Way&) const = default;
  };

  // Adds a step to the losses of a run by add(losses), unless a run with the same losses went the
  // same way.
  template <class Add>
  void Advance(const Way& way, const Add& add, LossList& losses) {
    LossList& after = after_[{losses.get(), way}];
    if (after == nullptr) {
      const bool own = losses.use_count() == 1;
      after = own                 ? std::move(losses)
              : losses == nullptr ? std::make_shared<std::vector<TensorLoss>>()
                                  : std::make_shared<std::vector<TensorLoss>>(*losses);
      add(*after);
    }
    losses = after;
  }

 private:
  std::map<std::pair<const void*, Way>, LossList> after_;  // by the losses before, and the way
};

}  // namespace dlsim::sim
