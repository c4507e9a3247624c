// SPDX-License-Identifier: Apache-2.0
// Training configurations in tests: what they mean, and how they are refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/scaler_run.h"
#include "sim/config/config_file.h"
#include "sim/config/training_config.h"
#include "tests/support/make_policy.h"

namespace dlsim::sim {

using Texts = std::vector<std::string>;

inline const std::string kConfigs = DLSIM_TEST_DATA "/config/";

inline const ConfigOptions kOnGpu = {.backend = Backend::kGpu, .kind = ""};
inline const ConfigOptions kOnCpu = {.backend = Backend::kCpu, .kind = ""};

// Interprets a text as if it were the file "f".
inline TrainingConfig Interpret(std::string_view text, const ConfigOptions& options = {}) {
  return InterpretConfig("f", ParseConfig("f", text, GuessLanguage("f", text)), options);
}

// A Model Zoo trainer with these lines in `precision`.
inline std::string Trainer(const Texts& lines) {
  std::string text = "trainer:\n  init:\n    precision:\n";
  for (const std::string& line : lines) text += "      " + line + "\n";
  return text;
}

// The only policy with its settings: "torch init_scale=8 growth_interval=2".
inline std::string PolicyOf(const TrainingConfig& config) {
  EXPECT_EQ(config.policies.size(), 1u);
  if (config.policies.empty()) return "";
  std::string text = config.policies[0].name;
  for (const std::string& setting : config.policies[0].settings) text += " " + setting;
  return text;
}

// What a file of tests/data/config says.
struct Meaning {
  std::string_view kind;
  Texts formats;
  std::string_view policy;  // as PolicyOf()
};

inline constexpr std::string_view kNothing = "static loss_scale=1";

// Expects this meaning of a text.
inline void ExpectMeaning(std::string_view text, const Meaning& meaning) {
  const TrainingConfig config = Interpret(text);
  EXPECT_EQ(config.kind, meaning.kind) << text;
  EXPECT_EQ(config.formats, meaning.formats) << text;
  EXPECT_EQ(PolicyOf(config), meaning.policy) << text;
}

// Reads the file and expects this meaning.
inline TrainingConfig ReadExpecting(const std::string& file, const Meaning& meaning) {
  const TrainingConfig config = ReadTrainingConfig(kConfigs + file, {});
  EXPECT_EQ(config.kind, meaning.kind);
  EXPECT_EQ(config.formats, meaning.formats);
  EXPECT_EQ(PolicyOf(config), meaning.policy);
  return config;
}

inline bool HasNote(const TrainingConfig& config, std::string_view part) {
  for (const std::string& note : config.notes) {
    if (note.find(part) != note.npos) return true;
  }
  return false;
}

// Expects wrong usage with exactly this line.
inline void ExpectConfigError(std::string_view text, const std::string& line,
                              const ConfigOptions& options = {}) {
  try {
    Interpret(text, options);
    ADD_FAILURE() << "accepted " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.what(), line) << text;
  }
}

// Runs the only policy of a configuration alone.
inline ScalerRun RunConfig(const TrainingConfig& config, int64_t steps,
                           const std::vector<int64_t>& overflow_steps) {
  const ConfigPolicy& policy = config.policies.at(0);
  const std::string format = config.formats.empty() ? "" : config.formats[0];
  return RunScaler(MakePolicy(policy.name, policy.settings, format), steps, overflow_steps,
                   OnFatal::kStop);
}

// The scale after each change, "0x1.0p+12 x3, ...".
inline std::string PathOf(const ScalerRun& run) {
  std::string text = run.scale_init ? std::to_string(*run.scale_init) : "refused";
  for (const ScaleRun& part : run.scale) {
    text += ", " + std::to_string(part.scale) + " x" + std::to_string(part.count);
  }
  return text;
}

}  // namespace dlsim::sim
