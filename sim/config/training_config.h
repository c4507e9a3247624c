// SPDX-License-Identifier: Apache-2.0
// What a training configuration means for a simulation, whichever software it was written for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/clipping.h"
#include "dlsim/sim/loss_scaler.h"
#include "sim/config/config_tree.h"
#include "sim/config/update_formats.h"

namespace dlsim::sim {

// Where the Cerebras stacks run; they scale the loss differently.
enum class Backend : uint8_t { kCsx, kGpu, kCpu };

constexpr auto EnumNames(Backend) {
  return std::to_array<EnumName<Backend>>(
      {{Backend::kCsx, "csx"}, {Backend::kGpu, "gpu"}, {Backend::kCpu, "cpu"}});
}

// The version of a stack: major, minor, patch.
using StackVersion = std::array<int64_t, 3>;

struct ConfigOptions {
  std::optional<Backend> backend;                      // else what the file says, else kCsx
  std::string kind;                                    // one of ConfigKinds(); empty = by content
  std::optional<StackVersion> version = std::nullopt;  // of the stack; else the newest known
};

// Returns the version in a text such as "1.9.1" or "0.16"; throws UsageError that names `place`.
StackVersion ParseStackVersion(const std::string& place, const std::string& text);

// A policy with the settings KEY=VALUE that the file gives it.
struct ConfigPolicy {
  std::string name;
  std::vector<std::string> settings;
};

struct TrainingConfig {
  std::string kind;                    // for the report, such as "DeepSpeed"
  std::vector<std::string> formats;    // empty: the file does not say
  std::vector<ConfigPolicy> policies;  // empty: the file does not say
  std::string scaled = {};             // a format with scales of its own, of products in layers
  Clipping clipping = {};
  std::optional<int64_t> grad_accum_steps = std::nullopt;  // micro-steps of a step
  std::optional<int64_t> accumulate_steps = std::nullopt;  // as ReplayOptions has it
  std::optional<int64_t> precision_opt_level = std::nullopt;
  std::optional<FiniteTest> finite_test = std::nullopt;
  UpdateRules updates = {};
  std::vector<std::string> notes = {};  // one line each: what the file does not say or surprises
};

// The names for ConfigOptions::kind.
std::span<const std::string_view> ConfigKinds();

// Throws Error: exit code 3 if the file cannot be read, 2 for what is wrong in it.
TrainingConfig ReadTrainingConfig(const std::string& path, const ConfigOptions& options);

// The same for a file that was read already; `file` is its name in messages.
TrainingConfig InterpretConfig(const std::string& file, const ConfigNode& root,
                               const ConfigOptions& options);

}  // namespace dlsim::sim
