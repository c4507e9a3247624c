// SPDX-License-Identifier: Apache-2.0
// Which loss-scale parameters lose least of the gradients of a trace, and why.
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

struct TuneRequest {
  std::vector<std::string> formats;
  std::string policy = "cerebras-2.10";
  std::vector<std::string> fp16_policies;  // tuned as well where there is a format for them
  Conversion conversion;                   // its format is filled in
  Checked checked = Checked::kParameterGradients;
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
  InitialScales initial_scales = InitialScales::kAny;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters as the policy's own settings.
  ParameterMap Settings(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

struct PolicyScore {
  ScaleParameters parameters;
  // Mean over steps of what the step loses: all if it is not finite, nothing within its window.
  // Steps after a fatal error are lost.
  double mean_loss = 1;
  uint64_t skipped = 0;
  uint64_t first_skips = 0;  // steps skipped before the first applied one
  uint64_t events = 0;       // steps at which the original software raises an error
  double min_scale = 0, max_scale = 0;
  bool grew = false;           // the scale was raised at some step
  bool given_up = false;       // the loss went beyond what was of interest: it is a lower bound
  std::vector<float> inexact;  // scales used that the table only bounds: the loss is a bound, too

  bool exact() const { return inexact.empty() && !given_up; }

  // False if the original software raises an error, which ends the training.
  bool eligible() const { return events == 0; }
};

// One step whatever the scale.
struct StepFacts {
  int64_t step = 0;
  float absmax = 0;       // of the gradients that decide; 0 if all are zero
  bool hopeless = false;  // not finite at any scale
  bool nonfinite_input = false;
  std::string tensor = {};  // to blame if hopeless
  double limit = 0;         // the largest float32 scale at which it is finite; 0 if hopeless
};

// Evidence and verdicts call losses below this none: what so little changes drowns in the noise of
// training.
inline constexpr double kNegligibleLoss = 1e-6;

// Scales that lose at most kNegligibleLoss at every step that some scale makes finite, among those
// that were looked at.
struct ScaleWindow {
  double low = 0;                       // the lowest measured that does
  bool low_open = false;                // it is the lowest measured of all: lower ones may do, too
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
  double low = 1, high = 1;  // powers of two between which the loss is the same
  uint64_t nonfinite_steps = 0;
};

// The parameters for one policy.
struct PolicyChoice {
  PolicyFamily family;
  PolicyScore score;
  // The best found that loses less but is not eligible, as the original raises an error.
  std::optional<PolicyScore> with_errors = {};
  double best_loss = 0;      // of all eligible parameters that were tried
  uint64_t evaluations = 0;  // how many were tried
  bool optimal = false;      // no policy can do better by more than the resolution
};

// A policy as its stack has it, for comparison.
struct ComparedPolicy {
  std::string label, policy;
  std::vector<NamedValue> parameters;
  std::string refusal;  // why it does not run; else empty
  double mean_loss = 1;
  uint64_t skipped = 0, first_skips = 0;
  double final_scale = 0;
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
  double least_loss = 0;                              // no policy can lose less
  uint64_t hopeless_steps = 0, unscalable_steps = 0;  // not finite anyhow; no scale without loss
  ScaleWindow window;
  Headroom headroom;
  std::vector<StepFacts> facts;
  std::vector<ComparedPolicy> comparisons;
  ReplayResult recommended;                                 // the replay of the recommendation
  std::vector<BlamedTensor> overflow_side, underflow_side;  // if the window is empty
  std::vector<std::string> notes;
};

struct TuneResult {
  std::vector<FormatTuning> formats;
  size_t steps = 0;
  bool ladder_only = false;                   // other scales could not be tried
  int64_t least_stride = 1, most_stride = 1;  // distances of step numbers
};

// Tunes for a trace, or for a profile of it; options as for Replay. Throws Error for unknown names,
// and for bad files.
TuneResult Tune(const TraceReader& trace, const TuneRequest& request, const ReplayOptions& options);
TuneResult Tune(const ProfileReader& profile, const TuneRequest& request,
                const ReplayOptions& options);

}  // namespace dlsim::sim
