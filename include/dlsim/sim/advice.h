// SPDX-License-Identifier: Apache-2.0
// The verdict on a recorded training: which formats hold its forward pass and its gradients, at
// which loss scales, and which layers are at risk.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// What no loss scale moves: whether outputs of the forward pass and parameters fit a format.

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
    // As dlsim.keep_float32 takes them: modules, and operations of a module's own forward, such as
    // "attn/matmul"; for each the line of the model that calls it, empty if not known.
    std::vector<std::string> keep_float32, sources;
    bool loss_in_float32 = false;  // also what runs outside of the model
    size_t steps = 0;              // that were run so
    double scale = 1;              // of the loss
    std::vector<Ceiling> ceilings;
    std::optional<double> share;  // of the multiplications of the forward pass, if known
  };
  std::optional<Plan> plan;

  // Whether the loss is finite, but no loss scale makes the gradients so.
  bool FailsInBackward() const { return fails == ShadowFailure::kNotFinite && bad == overflows; }
};

// Below one binade of head-room the next batch may overflow (docs/verdict.md).
inline constexpr double kHeadroomAtRisk = 1;

// What is said of a format; the last wins over all others. One that fits in forward was recorded
// without gradients, as an inference is: nothing is said of training.
enum class Verdict : uint8_t {
  kAsIs,
  kWithScale,
  kNoScaleIsSafe,
  kOverflows,
  kFitsInForward,
  kFailsInForward
};

constexpr auto EnumNames(Verdict) {
  return std::to_array<EnumName<Verdict>>({{Verdict::kAsIs, "as is"},
                                           {Verdict::kWithScale, "with a scale"},
                                           {Verdict::kNoScaleIsSafe, "no scale serves"},
                                           {Verdict::kOverflows, "overflows"},
                                           {Verdict::kFitsInForward, "fits in forward"},
                                           {Verdict::kFailsInForward, "fails in forward"}});
}

// Powers of two that float32 holds with their reciprocals.
inline constexpr int kLowestWindowExponent = -126, kHighestWindowExponent = 126;

// The loss scales that are safe for one step in one format (docs/verdict.md): exponents of two from
// `low` to `high`; empty if low is the larger.
struct StepWindow {
  int64_t step = 0;
  bool hopeless = false;  // not finite at any scale: a recorded gradient is not, or is too large
  int low = kLowestWindowExponent, high = kHighestWindowExponent;
  std::string low_tensor, high_tensor;  // that bound it; empty if nothing does
  bool channels_decide = false;         // the lower end: below it, channels of tensors are lost
  // Mean harm one binade below the lower end, as measured, then two, three and so on, predicted up
  // to where it stays; empty if there is none.
  std::vector<float> harm_below;
  float largest = 0;        // magnitude
  float highest_scale = 0;  // the largest, a power of two or not, at which nothing overflows
  float finite_scale = 0;   // the largest at which the gradients that decide are finite
  bool idle = false;        // gradients of parameters were recorded, and all are zero

  bool empty() const { return hopeless || low > high; }
  bool Has(int exponent) const { return !hopeless && low <= exponent && exponent <= high; }
  double lowest_scale() const { return std::ldexp(1.0, low); }

  // Returns what the step loses at a scale: all above the window, nothing in it.
  double LossAt(double scale) const;
};

// Neighboring exponents of two that are safe at no fewer steps than the one to use.
struct SafeScales {
  int low = 0, high = 0;
  size_t steps = 0;
  // To use: 0 if it is among them, so that no scale is needed; else the highest that leaves two
  // binades of head-room.
  int exponent = 0;
  int highest = 0;  // that leaves two binades of head-room, as far as any does
};

// What bounds the windows of all steps on one side.
struct WindowBound {
  int64_t step = 0;
  std::string tensor;            // empty: nothing does
  bool channels_decide = false;  // as of the window
};

// What one tensor loses at a scale, over the steps.
struct TensorHarm {
  TensorRef tensor;           // as in its first step
  HarmOverSteps harm = {};    // over the steps in which it is not zero
  ChannelHarm channels = {};  // over the same, as far as the rounding lets them be known
  float absmax = 0;           // the largest magnitude of all steps
  uint32_t noise_steps = 0;   // of these those in which it is but rounding noise of float32
  // Those in which it, or its channels on average, lose more than a tenth; if there are any, the
  // first and the last of them.
  uint32_t steps_at_risk = 0;
  int64_t first_step = 0, last_step = 0;

  bool noise() const { return 2 * uint64_t{noise_steps} > harm.steps; }

  // Whether more is lost of its channels on average than of it as a whole.
  bool ChannelsLoseMore() const { return channels.mean.worst > harm.worst; }
  const HarmOverSteps& larger() const { return ChannelsLoseMore() ? channels.mean : harm; }
};

// What a recorded training loses in formats with scales of their own, in which no loss scale is
// needed: see scaled_format.h.

// One tensor over the steps. Each step is measured with blocks along rows and along columns, as
// products of matrices need both, unless the whole tensor has one scale or its blocks are squares.
struct ScaledTensor {
  std::string name;
  Role role = Role::kGrad;
  bool judged = false;  // a matrix that such a training converts
  std::array<TensorStats, 2> by_axis =
      {};                           // along rows, or the only ones; along columns, may be empty
  HarmOverSteps harm = {};          // of the axis that loses more, where it is not zero
  HarmOverSteps channel_harm = {};  // the same averaged over its channels
  double worst_channel_harm = 0;
  uint64_t clipped_steps = 0;  // with elements beyond the largest of the format
  std::optional<int64_t> first_clipped_step = {};
  ScaleRange scales = {};  // by which values were multiplied; `final` is the least of the last step
};

// The judged tensors of one side at a step, each at its larger harm; those of zeros do not count.
struct ScaledHarm {
  double mean = 0, worst = 0;
  size_t tensors = 0;
  std::string worst_tensor;
};

struct ScaledStep {
  int64_t step = 0;
  ScaledHarm forward, backward;
  uint64_t clipped = 0;  // elements of judged tensors
};

// An output or a parameter that loses more of its energy at a step fails it.
inline constexpr double kScaledForwardFails = 0.5;
// Gradients of activations that lose more on average, rounding included, fail a step, or make it
// worse: trainings with gradients above the second ended with a larger loss than in float32
// (docs/scaled-formats.md).
inline constexpr double kScaledBackwardFails = 0.1, kScaledBackwardWorse = 0.006;

// What is said of a scaled format.
struct ScaledAdvice {
  std::string format;
  ScaledFormat row = {};
  std::vector<ScaledStep> steps;
  std::vector<ScaledTensor> tensors;  // in file order of their first appearance
  std::set<Role> looked_at;           // of judged tensors

  // Steps that fail on a side, or lose more in backward than the limit.
  size_t ForwardFailures() const;
  size_t BackwardFailures(double limit = kScaledBackwardFails) const;
  // Whether more steps do so than a training survives: one in twenty, and one in any.
  bool FailsInForward() const;
  bool FailsInBackward(double limit = kScaledBackwardFails) const;
};

// What to keep in float32 so that a format trains, and what follows from it for the rest: `scale`
// is the one to use.
struct Change : Shadow::Plan {
  std::vector<std::string> because;  // what 16 bits cannot hold
  Verdict then = Verdict::kAsIs;
  std::optional<SafeScales> window;  // of loss scales
};

struct FormatAdvice {
  std::string format;
  Verdict verdict = Verdict::kAsIs;
  ForwardVerdict forward, values;  // outputs of modules and operations; parameters
  std::optional<Shadow> shadow;    // what steps that were run in the format have shown
  // All that follows is of gradients.
  // The scales that are safe at all steps but isolated ones; nothing if none is.
  std::optional<SafeScales> window;
  std::optional<SafeScales> safest;  // those that are safe at the most steps, however few
  WindowBound low, high;
  std::optional<double> scale;  // to use at all steps
  // At which that scale is not safe; without one, the scale that is safe at the most.
  size_t steps_outside = 0;
  size_t steps = 0;
  size_t hopeless_steps = 0;  // of these, not finite as recorded: they say nothing of the format
  size_t empty_steps = 0;     // of the others, with an empty window
  // Of the others, with nothing but zeros, at least for the parameters: they say nothing either ...
  size_t zero_steps = 0;
  size_t idle_steps = 0;                   // ... of these, with gradients of activations
  std::vector<TensorHarm> tensors;         // at that scale, in file order, without noise
  std::vector<TensorHarm> at_risk;         // of these, the worst first
  std::vector<std::string> noise_tensors;  // not counted
  double mean_harm = 0;                    // over all tensors
  std::vector<StepWindow> windows;         // of all steps
  // Where steps that were run in the format fail; nothing if no set of parts short of the whole
  // model was found to help.
  std::optional<Change> change;
  std::string instead;  // what else may help where it fails; may be empty
};

// A policy's path compared with the windows of its format.
struct PathInWindows {
  std::string format, policy;
  size_t inside = 0, below = 0, above = 0, none_safe = 0;  // steps; the last have an empty window
  std::string config = {};  // the configuration it is of, where several are compared
};

// Steps with a recorded loss that is NaN or infinite.
struct BrokenLosses {
  size_t steps = 0;
  int64_t first_step = 0;
};

// Steps that the recorded training computed in 16 bits.
struct ComputedIn16Bits {
  size_t float16 = 0, bfloat16 = 0;
};

struct Advice {
  std::vector<FormatAdvice> formats;  // in the order of the call
  std::vector<ScaledAdvice> scaled;   // the same of formats with scales of their own
  size_t best = 0;                    // among `formats`, or `scaled` if there are none
  std::vector<Role> looked_at;        // with a gradient that is not zero, or forward tensors
  bool gradients = true;              // some were recorded, whatever they say
  bool parameters_only = false;       // no gradients of activations were among them
  bool channels = false;              // those of some gradient are known, and were judged
  std::string tensors = "*";          // only those that match were read
  Recipe recipe = Recipe::kAutocast;  // that says which forward tensors count
  BrokenLosses broken_losses = {};
  std::string not_run;               // why no step could be run in formats; empty if not known
  std::vector<std::string> float32;  // parts that were taken to be in float32
  RefusedSteps refused = {};         // before the last recorded step
  ComputedIn16Bits computed_in = {};
  std::vector<PathInWindows> paths;  // of the policies that were replayed, if any
};

// Returns it in words: one entry for each format, which has further lines where there is something
// to change; one on what was looked at; one on the tensors at risk if there are any.
std::vector<std::string> AdviceLines(const Advice& advice);

struct AdviceRequest {
  std::vector<std::string> formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  Conversion conversion = {};  // its format is filled in
  Recipe recipe = Recipe::kAutocast;
  std::string tensors = "*";  // the pattern of those that were read
};

// Looks at all steps, at least one. The observer of the options is not called. Throws Error for
// unknown names, and for a bad file.
Advice AdviseOn(const StepSource& source, const AdviceRequest& request = {},
                const ReplayOptions& options = {});

}  // namespace dlsim::sim
