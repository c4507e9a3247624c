// SPDX-License-Identifier: Apache-2.0
// Measures one block of a step on the CPU.
#pragma once

#include "src/measure/compute_device.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// Adds what the block holds to its answer, which begins empty, on the calling thread.
void MeasureBlock(const StepWork& work, const Block& block, const BlockAnswer& answer);

}  // namespace dlsim
