// SPDX-License-Identifier: Apache-2.0
// Measures the blocks of a step on the CPU.
#pragma once

#include "src/device/compute_device.h"
#include "src/measure/block_questions.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

class BlockMeasurer {
 public:
  // Makes ready what the blocks of all tensors have in common. `work` must live as long as this.
  explicit BlockMeasurer(const StepWork& work);

  // Adds what the block holds to its answer, which begins empty, on the calling thread; several
  // threads may at once.
  void Measure(const Block& block, const BlockAnswer& answer) const;

 private:
  const StepWork& work_;
  BlockQuestions questions_;
};

}  // namespace dlsim
