// SPDX-License-Identifier: Apache-2.0
// The switches fp16 and bf16, as most stacks on PyTorch have them: fp16 with a loss scaler, bf16
// and float32 without.
#pragma once

#include <optional>
#include <string_view>

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

enum class Precision { kFloat32, kFp16, kBf16 };

// Reads a switch: true, false, 1 or 0; off by default.
bool ReadSwitch(const ConfigBlock& block, std::string_view key);

// Reads two switches, off by default; refuses both at once.
Precision ReadSwitches(const ConfigBlock& block, std::string_view fp16, std::string_view bf16);

// Said of a run without 16 bits.
inline constexpr std::string_view kFloat32Note =
    "neither fp16 nor bf16 is enabled: this run computes in float32";

// Sets format and policy, `scaler` in fp16, with a note where nothing is scaled.
void ApplyPrecision(Precision precision, ConfigPolicy scaler, TrainingConfig& config);

// Returns the text in lower case.
std::string Lowered(std::string text);

// True for "${trainer.devices}" and the like, whose values Hydra puts in.
bool IsInterpolated(const ConfigNode& value);

// Refuses a number in quotes.
void RequireUnquoted(const ConfigBlock& block, std::string_view key);

// Reads the limit of clipping by norm; 0 and less is off.
void ReadNormLimit(const ConfigBlock& block, std::string_view key, std::optional<double> fallback,
                   TrainingConfig& config);

}  // namespace dlsim::sim
