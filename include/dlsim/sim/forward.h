// SPDX-License-Identifier: Apache-2.0
// What no loss scale moves: whether outputs of the forward pass and parameters fit a format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"

namespace dlsim::sim {

// How the training holds values in 16 bits: by torch.amp's autocast, which keeps some of them in
// float32, or all of them, as model.half() does.
enum class Recipe : uint8_t { kAutocast, kHalf };

constexpr auto EnumNames(Recipe) {
  return std::to_array<EnumName<Recipe>>(
      {{Recipe::kAutocast, "autocast"}, {Recipe::kHalf, "half"}});
}

enum class ForwardState : uint8_t { kFits, kOverflows, kNotRecorded };

constexpr auto EnumNames(ForwardState) {
  return std::to_array<EnumName<ForwardState>>({{ForwardState::kFits, "fits"},
                                                {ForwardState::kOverflows, "overflows"},
                                                {ForwardState::kNotRecorded, "not recorded"}});
}

// An output that loses more than this share of its energy to underflow is at risk ...
inline constexpr double kForwardLossAtRisk = 0.1;
// ... and one that loses more than this at most steps fails.
inline constexpr double kForwardLossFails = 0.5;

// One tensor over the steps that have it, in one format at scale 1.
struct ForwardTensor {
  std::string name;
  float absmax = 0;                           // of its finite values ...
  int64_t absmax_step = 0;                    // ... and the first step that has it
  std::optional<int64_t> overflow_step = {};  // the first at which a finite value overflows ...
  float overflow_absmax = 0;                  // ... and the largest magnitude there
  bool constant = false;  // what overflows first is one value below -1e4, as masks add or fill in
  bool hides_scores =
      false;  // some values are a constant of masks that overflows, and do not count
  std::optional<int64_t> nonfinite_step = {};  // the first with values that were not finite
  uint64_t inf = 0, nan = 0;                   // such values, over all steps; they do not count
  double energy_lost = 0;  // the largest share of its sum of squares that underflows at a step ...
  int64_t energy_lost_step = 0;  // ... and the first such step
  size_t steps = 0;              // at which it is not all zero ...
  size_t steps_lost = 0;  // ... and those at which losing more than kForwardLossFails matters

  // Whether it vanishes at most steps, and the loss depends on it.
  bool Vanishes() const { return 2 * steps_lost > steps; }
};

// What is said of all tensors of one role that the recipe holds in 16 bits.
struct ForwardVerdict {
  ForwardState state = ForwardState::kNotRecorded;
  size_t steps = 0;  // that have such tensors, whether the recipe counts them or not
  float absmax = 0;  // of the finite values that count
  // Binades from that to the largest finite value of the format: negative if it overflows, never
  // negative if it fits, infinite if all that counts is 0; nothing if no such tensor was recorded.
  std::optional<double> headroom;
  std::vector<ForwardTensor> tensors;        // that count, in the order in which they were recorded
  std::vector<std::string> kept_in_float32;  // recorded, but the recipe does not round them

  // Those that overflow, in the order in which they do; within a step as recorded. They belong to
  // this verdict.
  std::vector<const ForwardTensor*> Overflowing() const;

  // Those that vanish, as recorded. They belong to this verdict.
  std::vector<const ForwardTensor*> Vanishing() const;
};

// Why a format fails at steps that were run in it: results are not finite, the loss is another
// one, or gradients are systematically wrong.
enum class ShadowFailure : uint8_t { kNone, kNotFinite, kLoss, kGradients };

constexpr auto EnumNames(ShadowFailure) {
  return std::to_array<EnumName<ShadowFailure>>({{ShadowFailure::kNone, ""},
                                                 {ShadowFailure::kNotFinite, "not finite"},
                                                 {ShadowFailure::kLoss, "loss"},
                                                 {ShadowFailure::kGradients, "gradients"}});
}

// What the recorder has found by running steps again in a format (docs/verdict.md). All are counts
// and figures of the steps that are finite in float32.
struct Shadow {
  ShadowFailure fails = ShadowFailure::kNone;
  size_t steps = 0;
  size_t bad = 0;                   // that are not finite, or raise, in the format ...
  size_t overflows = 0;             // ... of these, with a finite loss: only gradients are not
  std::string error;                // what the first bad step has raised, or empty
  std::optional<double> loss;       // how far the mean loss is from float32's, if it was run
  std::optional<double> gradients;  // the same of mean gradients of rows, in the mean
  double scale = 1;                 // of the loss at the last step

  // A step whose gradients overflow at scales above this one, those of the module first.
  struct Ceiling {
    int64_t step = 0;
    double scale = 1;
    std::string module;
  };
  std::vector<Ceiling> ceilings;

  // Where the first bad step breaks, in order: an operation, with the largest magnitudes of its
  // operands and of its result in float32, if it runs there.
  struct Culprit {
    std::string part;  // the module, or the operation in it, as keep_float32 takes them
    std::string module, operation;
    std::optional<double> operands, result;
  };
  std::vector<Culprit> culprits;
  std::vector<std::string> modules;  // with wrong gradients

  // Parts with which, kept in float32, the steps do not fail.
  struct Plan {
    std::vector<std::string> keep_float32, sources;  // as of Change
    bool loss_in_float32 = false;                    // also what runs outside of the model
    size_t steps = 0;                                // that were run so
    double scale = 1;                                // of the loss
    std::vector<Ceiling> ceilings;
    std::optional<double> share;  // of the multiplications that is kept, if known
  };
  std::optional<Plan> plan;

  // Whether the loss is finite, but no loss scale makes the gradients so.
  bool FailsInBackward() const { return fails == ShadowFailure::kNotFinite && bad == overflows; }
};

// Below one binade of head-room the next batch may overflow (docs/verdict.md).
inline constexpr double kHeadroomAtRisk = 1;

}  // namespace dlsim::sim
