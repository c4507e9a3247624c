// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/cerebras_notes.h"

#include "sim/policies/projection.h"

namespace dlsim::sim {

void NoteMisprints(double init_scale, double min_loss_scale, double max_loss_scale,
                   std::vector<std::string>& notes) {
  const std::string refused = "the real GradScaler refuses min_loss_scale below 2^-14";
  if (init_scale == 2e15 || max_loss_scale == 2e15 || min_loss_scale == 2e-14) {
    notes.push_back(
        "the documented 2e15 and 2e-14 look like misprints of 2^15 and 2^-14, the defaults of the "
        "code" +
        (min_loss_scale < 0x1p-14 ? "; " + refused : ""));
  } else if (min_loss_scale < 0x1p-14) {
    notes.push_back(refused + "; run as asked");
  }
}

// The comparison in float32, as in the originals.
void NoteTolerance(double overflow_tolerance, int64_t most_steps, std::vector<std::string>& notes) {
  const float tolerance = static_cast<float>(overflow_tolerance);
  if (tolerance >= 1) {
    notes.push_back(
        "overflow_tolerance of 1 or more: overflows never lower the scale, which keeps growing");
    return;
  }
  if (!(tolerance > 0)) return;
  int64_t step = 1;
  while (step < kProjectedSteps && tolerance < 1 / static_cast<float>(step)) ++step;
  if (step > most_steps || step == kProjectedSteps) return;
  notes.push_back("overflow_tolerance is compared with >: a first overflow in step " +
                  std::to_string(step) +
                  " since the last change or later is tolerated, and the scale can double on it");
}

}  // namespace dlsim::sim
