// SPDX-License-Identifier: Apache-2.0
// The loss of the training as a line of a log prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace dlsim::sim {

// Which steps a printed loss is about.
enum class LossOver : uint8_t {
  kStep,     // of its own step
  kSteps,    // a mean over all steps since the line before
  kApplied,  // a mean that leaves out skipped steps
  kFinite,   // a mean that leaves out, or replaces, values that are not finite
  kUnknown,  // a mean over some steps, or the loss of a step before
};

struct PrintedLoss {
  size_t line = 0;
  double value = 0;
  LossOver over = LossOver::kStep;
  std::optional<int64_t> step = {};       // the number of its step, if the line has one
  std::optional<double> epoch_mean = {};  // over all steps of the epoch until this line
  std::optional<int64_t> skipped = {};    // Megatron-LM: steps since the line before
  std::optional<int64_t> nonfinite = {};  // Megatron-LM: those of them with a loss not finite
  bool norm_is_nonfinite = false;         // of the gradient, in the same line
};

// True for a loss that is not finite, or if one of those that the line is about is not.
bool IsNonfinite(const PrintedLoss& loss);

// The losses of a log, in order, and what bears on their meaning.
struct LogLosses {
  std::vector<PrintedLoss> printed = {};
  bool several_ranks = false;      // print the same messages
  bool scale_may_be_next = false;  // a record's scale is that of its step or of the next one
};

// Returns the loss that a line prints; nothing if it prints none, or that of a validation. `line`
// has no terminal codes; it may be JSON.
std::optional<PrintedLoss> RecognizeLoss(std::string_view line);

}  // namespace dlsim::sim
