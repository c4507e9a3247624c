// SPDX-License-Identifier: Apache-2.0
// The result of `dlsim tune`, for a terminal and as JSON ("dlsim.tune/1", docs/tune.md).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dlsim/enum_names.h"
#include "dlsim/sim/tune.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// What is minimized, in one paragraph.
inline constexpr const char* kTuneObjective =
    "mean loss of the recorded steps, where a step loses 1 if it is skipped or not finite, 0 if "
    "its "
    "loss scale is safe, else its harm, the mean over its tensors";

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
