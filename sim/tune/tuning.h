// SPDX-License-Identifier: Apache-2.0
// `dlsim tune`: which loss-scale parameters lose least of the gradients of a trace, and why.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/replay.h"
#include "sim/tune/policy_family.h"
#include "sim/tune/policy_score.h"
#include "sim/tune/scale_table.h"

namespace dlsim {

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
  double worst_step_energy_lost = 0;
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

// Throws Error for unknown names, and for a bad trace.
TuneResult Tune(const TuneSource& source, const TuneRequest& request);

// The mean loss of a replay as tune defines it; steps that a fatal error cut off are lost.
double MeanLossOf(const ReplayResult& result, size_t steps);

}  // namespace dlsim
