// SPDX-License-Identifier: Apache-2.0
// The parameters of a policy that follow from the scale windows of the steps, and what a run of it
// loses; and the result of `dlsim tune`, for a terminal and as JSON ("dlsim.tune/1", docs/tune.md).
// include/dlsim/sim/tune.h has the tuning.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/tune.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// Powers of two that are tried and recommended.
inline constexpr int kLowestScaleExponent = -24, kHighestScaleExponent = 40;

// Returns the policy that is tuned for a format.
std::string_view TunedPolicy(const TuneRequest& request, const std::string& format);

// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  bool current = false;  // the defaults are those of the current policy, not of the stack
  ParameterMap base;     // the other parameters that are not the policy's own
  // DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
  bool powers_of_two_from_one = false;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters that the stack has, under its names.
  std::vector<NamedValue> Named(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

// The defaults are those of the policy under `settings`, KEY=VALUE; a fixed scale among them is
// left out. Throws Error (exit code 2) for a policy that has no initial scale and interval, or more
// than one scale, and for settings that it refuses.
PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings = {});

// Differences of the gradient lost below this count as none: a step of ten thousand, or a hundredth
// of the harm from which on training suffers.
inline constexpr double kLossResolution = 1e-4;

// What an applied step loses: all if an activation gradient overflows, nothing as long as its harm
// (docs/numerics.md) stays below the threshold, else the mean over tensors of what each loses of
// its own energy, the larger of parameter and activation gradients.
double LossOf(const ReplayStep& step, const Conversion& conversion);

// Returns the score of a replay of `steps` steps; those that a fatal error cut off are lost.
PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion);

// The scales, powers of two or not, that serve every step that some scale makes finite.
struct CommonScales {
  double low = 0;                       // a power of two
  bool low_open = false;                // nothing bounds it
  double high = 0;                      // the largest that no such step forbids
  int64_t low_step = 0, high_step = 0;  // that decide
  bool empty() const { return low > high; }
};
CommonScales CommonScalesOf(std::span<const StepWindow> windows);

// How far up the steps let the scale go, over those that some scale makes finite; all 0 without
// any.
struct Headroom {
  double min = 0, fifth_percentile = 0, median = 0, last = 0;
  double min_first_half = 0, min_second_half = 0;
  double spread_binades = 0;  // from the lowest to the highest
};
Headroom HeadroomOf(std::span<const StepWindow> windows);

// Returns the verdict as what to do about the loss scale.
std::string_view ScalingAdvised(const FormatAdvice& advice);

// What is minimized, in one paragraph.
inline constexpr const char* kTuneObjective =
    "mean loss of the recorded steps, where a step loses 1 if it is skipped or not finite, 0 if "
    "its loss scale is safe, else its harm, the mean over its tensors";

// Which policies may be recommended.
inline constexpr const char* kTuneEligibility =
    "policies under which the original software would raise an error and end the training are not "
    "recommended";

// Returns the report but for verdict and trace: what is recommended and how to configure it, with
// all the evidence if `details` are asked for; `top` tensors in each list.
std::string FormatTuneReport(const TuneResult& result, size_t top, bool details);

// The document, of what lives until it is told; `config`: empty without one.
TellRows RowsOf(const TuneResult& result, const TellRows& trace = {}, const TellRows& verdict = {},
                const TellRows& config = {});
void AddTuneKeys(std::vector<KeyTable>& tables);

// The stacks for which a recommendation is told as what to paste: a configuration, which
// `dlsim replay --config` reads, or Python.
enum class ConfigTarget : uint8_t {
  kModelZoo,
  kDeepSpeed,
  kTorch,
  kAccelerate,
  kTrainer,
  kLightning
};

constexpr auto EnumNames(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kModelZoo, "zoo"},
                                                {ConfigTarget::kDeepSpeed, "deepspeed"},
                                                {ConfigTarget::kTorch, "torch"},
                                                {ConfigTarget::kAccelerate, "accelerate"},
                                                {ConfigTarget::kTrainer, "trainer"},
                                                {ConfigTarget::kLightning, "lightning"}});
}

// What people call them, too.
constexpr auto EnumAliases(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kTorch, "pytorch"},
                                                {ConfigTarget::kTrainer, "hf"},
                                                {ConfigTarget::kTrainer, "huggingface"}});
}

// Returns the policy whose rule the stack follows.
std::string_view PolicyOf(ConfigTarget target);

// Returns the block for a format, or nothing if the stack has no such type or the tuning has no
// choice for its policy.
std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning);

}  // namespace dlsim::sim
