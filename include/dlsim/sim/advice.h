// SPDX-License-Identifier: Apache-2.0
// The verdict on a recorded training: which formats hold its forward pass and its gradients, at
// which loss scales, and which layers are at risk.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "dlsim/sim/forward.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/scaled.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

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
  std::string name;
  Role role = Role::kGrad;
  HarmOverSteps harm = {};    // over the steps in which it is not zero
  ChannelHarm channels = {};  // over the same, as far as the rounding lets them be known
  float absmax = 0;           // the largest magnitude of all steps
  size_t noise_steps = 0;     // of these those in which it is but rounding noise of float32
  size_t steps_at_risk = 0;   // in which it, or its channels on average, lose more than a tenth ...
  std::optional<int64_t> first_step = {}, last_step = {};  // ... the first and the last of them

  bool noise() const { return 2 * noise_steps > harm.steps; }

  // Whether more is lost of its channels on average than of it as a whole.
  bool ChannelsLoseMore() const { return channels.mean.worst > harm.worst; }
  const HarmOverSteps& larger() const { return ChannelsLoseMore() ? channels.mean : harm; }
};

// What to keep in float32 so that a format trains, and what follows from it for the rest.
struct Change {
  // As dlsim.keep_float32 takes them: modules, and operations of a module's own forward, such as
  // "attn/matmul"; for each the line of the model that calls it, empty if not known.
  std::vector<std::string> keep_float32, sources;
  bool loss_in_float32 = false;      // also what runs outside of the model
  std::vector<std::string> because;  // what 16 bits cannot hold
  Verdict then = Verdict::kAsIs;
  std::optional<SafeScales> window;  // of loss scales
  std::optional<double> scale;       // to use
  std::optional<double> share;       // of the multiplications of the forward pass, if known
  size_t steps = 0;                  // that were run so
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
  // In words: one entry for each format, which has further lines where there is something to
  // change; one on what was looked at; one on the tensors at risk if there are any.
  std::vector<std::string> lines;
};

struct AdviceRequest {
  std::vector<std::string> formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  Conversion conversion = {};  // its format is filled in
  Recipe recipe = Recipe::kAutocast;
  std::string tensors = "*";  // the pattern of those that were read
};

// Looks at all steps, at least one. The observer of the options sees no runs. Throws Error for
// unknown names, and for a bad file.
Advice AdviseOn(const StepSource& source, const AdviceRequest& request = {},
                const ReplayOptions& options = {});
Advice AdviseOn(const TraceReader& trace, const AdviceRequest& request = {},
                const ReplayOptions& options = {});

}  // namespace dlsim::sim
