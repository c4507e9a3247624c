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

// What an applied step loses: all if an activation gradient overflows, nothing as long as its harm
// (docs/numerics.md) stays below the threshold, else the mean over tensors of what each loses of
// its own energy, the larger of parameter and activation gradients.
double LossOf(const ReplayStep& step, const Conversion& conversion);

// Returns the score of a replay of `steps` steps; those that a fatal error cut off are lost.
PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion);

// The scales, powers of two or not, that serve every step that some scale makes finite.
struct CommonScales {
  double low = 0, high = 0;  // a power of two; the largest that no such step forbids
  // That decide; null: nothing bounds it.
  const StepWindow *low_step = nullptr, *high_step = nullptr;
  bool empty() const { return low > high; }
};
CommonScales CommonScalesOf(std::span<const StepWindow> windows);

// Returns the verdict as what to do about the loss scale.
std::string_view ScalingAdvised(const FormatAdvice& advice);

// Returns the report but for verdict and trace: what is recommended and how to configure it; with
// `details` what others lose.
std::string FormatTuneReport(const TuneResult& result, bool details);

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
