// SPDX-License-Identifier: Apache-2.0
// Which loss-scale parameters serve the gradients of a trace, and why.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/profile_file.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// A policy as a training has it today.
struct CurrentPolicy {
  std::string label;  // such as the file that says so
  std::string policy;
  std::vector<std::string> settings;  // KEY=VALUE
};

struct TuneRequest {
  std::vector<std::string> formats;
  std::string policy = "cerebras-2.10";
  std::vector<std::string> fp16_policies;  // tuned as well where there is a format for them
  Conversion conversion;                   // its format is filled in
  Checked checked = Checked::kParameterGradients;
  std::optional<CurrentPolicy> current;  // compared, and told what to change
};

enum class TuneVerdict : uint8_t { kNoScaleNeeded, kStaticEnough, kDynamic, kNoScaleHelps };

constexpr auto EnumNames(TuneVerdict) {
  return std::to_array<EnumName<TuneVerdict>>(
      {{TuneVerdict::kNoScaleNeeded, "no scale needed"},
       {TuneVerdict::kStaticEnough, "static scale enough"},
       {TuneVerdict::kDynamic, "dynamic scaling recommended"},
       {TuneVerdict::kNoScaleHelps, "no scale helps"}});
}

// The tuned parameters; those that a policy does not have are ignored.
struct ScaleParameters {
  double init = 1;
  double min = 0;
  double max = 0;
  int64_t interval = 0;
  int64_t hysteresis = 1;

  friend bool operator==(const ScaleParameters&, const ScaleParameters&) = default;
};

// DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
enum class InitialScales : uint8_t { kAny, kPowersOfTwoFromOne };

struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  bool current = false;  // the defaults are those of the current policy, not of the stack
  ParameterMap base;     // the other parameters that are not the policy's own
  InitialScales initial_scales = InitialScales::kAny;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters, and the base, as the policy's own settings.
  ParameterMap Settings(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

// What a policy with some parameters comes to.
struct PolicyScore {
  ScaleParameters parameters;
  // Mean over steps of what the step loses: all if it is skipped or not finite, nothing within its
  // window, else the mean over tensors of what each loses of its own energy. Steps after a fatal
  // error are lost.
  double mean_loss = 1;
  uint64_t skipped = 0;
  uint64_t first_skips = 0;  // steps skipped before the first applied one
  uint64_t events = 0;       // steps at which the original software raises an error
  double min_scale = 0, max_scale = 0, final_scale = 0;
  bool grew = false;  // the scale was raised at some step

  // False if the original software raises an error, which ends the training.
  bool eligible() const { return events == 0; }
};

// What one step allows, whatever the policy: its scale window (docs/verdict.md).
struct StepFacts {
  int64_t step = 0;
  bool hopeless = false;    // not finite at any scale
  std::string tensor = {};  // to blame if hopeless
  double limit = 0;         // the largest scale at which the gradients that decide are finite; or 0
  double highest = 0;       // the largest at which all are, and none is clamped
  double lowest = 0;  // the lowest power of two at which harm is below the threshold; of a step
                      // without a window the one beyond `highest`
  // Mean harm at half of that, as measured, then at a quarter and so on, foretold up to where it
  // stays; empty if there is none.
  std::vector<float> harm_below = {};
};

// Scales that serve every step that some scale makes finite.
struct ScaleWindow {
  double low = 0;                       // the lowest, a power of two
  bool low_open = false;                // nothing bounds it
  double high = 0;                      // the largest scale that no such step forbids
  int64_t low_step = 0, high_step = 0;  // that decide
  bool empty() const { return low > high; }
};

// How far up the steps let the scale go, over those that some scale makes finite.
struct Headroom {
  double min = 0, fifth_percentile = 0, median = 0, last = 0;
  double min_first_half = 0, min_second_half = 0;
  double spread_binades = 0;  // from the lowest to the highest
};

// A scale that never changes; a step that is not finite counts as lost.
struct StaticChoice {
  double scale = 1;
  double mean_loss = 0;
  double low = 1, high = 1;  // powers of two between which no fewer steps are served
  uint64_t nonfinite_steps = 0;
};

// The parameters for one policy.
struct PolicyChoice {
  PolicyFamily family;
  PolicyScore score;
  uint64_t evaluations = 0;  // parameter sets that were tried
  bool optimal = false;      // as good as the best power of two of each step
};

// A policy as its stack has it, for comparison.
struct ComparedPolicy {
  std::string label, policy;
  std::vector<NamedValue> parameters;
  std::string refusal;  // why it does not run; else empty
  PolicyScore score;    // but for its parameters
};

// A parameter of the current policy that the recommendation changes.
struct ParameterChange {
  NamedValue from, to;
};

// A tensor that is in the way of a common scale.
struct BlamedTensor {
  std::string name;
  double absmax = 0;
  double worst_harm = 0;  // in one step
  uint64_t overflow = 0;
};

struct FormatTuning {
  std::string format;
  TuneVerdict verdict = TuneVerdict::kDynamic;
  std::string reason;
  std::vector<PolicyChoice> choices;  // the policy asked for, then others
  StaticChoice best_static;
  double loss_at_one = 0;
  double least_loss = 0;          // at the best power of two of each step
  uint64_t hopeless_steps = 0;    // not finite at any scale
  uint64_t unscalable_steps = 0;  // of the others, those without a window
  ScaleWindow window;
  Headroom headroom;
  std::vector<StepFacts> facts;
  std::vector<ComparedPolicy> comparisons;  // no scaling, the stacks' defaults, the current policy
  std::vector<ParameterChange> changes;     // of the current policy, if it is of the same stack
  ReplayResult recommended;                 // the replay of the recommendation
  std::vector<BlamedTensor> overflow_side, underflow_side;  // if the window is empty
  std::vector<std::string> notes;
};

struct TuneResult {
  std::vector<FormatTuning> formats;
  size_t steps = 0;
  bool estimated = false;         // of a profile: harm is known within brackets
  bool compares_current = false;  // the last comparison of each format is the current policy
  int64_t least_stride = 1, most_stride = 1;  // distances of step numbers
};

// Tunes for a trace, or for a profile of it; options as for Replay. Throws Error for unknown names,
// and for bad files.
TuneResult Tune(const TraceReader& trace, const TuneRequest& request, const ReplayOptions& options);
TuneResult Tune(const ProfileReader& profile, const TuneRequest& request,
                const ReplayOptions& options);

}  // namespace dlsim::sim
