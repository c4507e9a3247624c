// SPDX-License-Identifier: Apache-2.0
// What an optimizer was told, and which classes are not replayed under a name that they share.
#include "sim/updates/optimizer_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "dlsim/error.h"
#include "sim/updates/update_factors.h"

namespace dlsim::sim {
namespace {

OptimizerSettings Told(const std::string& optimizer, std::map<std::string, double> values,
                       const SettingOverrides& overrides = {}) {
  values["lr"] = 0.1;
  return SettingsOf({optimizer, std::move(values)}, overrides, "f");
}

// PyTorch's Adam says how it decays; so does the recorder of DeepSpeed's and Apex's.
TEST(OptimizerSettings, WeightDecayIsThatOfTheClassUnlessRecorded) {
  EXPECT_TRUE(Told("adamw", {}).decoupled);
  EXPECT_FALSE(Told("adam", {}).decoupled);
  EXPECT_TRUE(Told("adam", {{"decoupled_weight_decay", 1}}).decoupled);
  for (const std::string fused : {"fusedadam", "deepspeedcpuadam"}) {
    EXPECT_TRUE(Told(fused, {}).decoupled) << fused;
    EXPECT_FALSE(Told(fused, {{"decoupled_weight_decay", 0}}).decoupled) << fused;
  }
}

// --optimizer names a class, with its own kind of decay.
TEST(OptimizerSettings, AnotherOptimizerDecaysInItsOwnWay) {
  SettingOverrides adam, adamw;
  adam.optimizer = OptimizerKind::kAdam;
  adamw.optimizer = OptimizerKind::kAdamW;
  EXPECT_FALSE(Told("adamw", {{"decoupled_weight_decay", 1}}, adam).decoupled);
  EXPECT_TRUE(Told("adam", {{"decoupled_weight_decay", 0}}, adamw).decoupled);
}

TEST(OptimizerSettings, KernelsAreFusedWhereOneIsRecorded) {
  EXPECT_FALSE(Told("adamw", {}).is_fused);
  EXPECT_FALSE(Told("adamw", {{"fused", 0}}).is_fused);
  EXPECT_TRUE(Told("sgd", {{"fused", 1}}).is_fused);
  EXPECT_TRUE(Told("fusedadam", {}).is_fused);
}

TEST(OptimizerSettings, MomentsWithoutBiasCorrection) {
  for (const UpdateDevice device : {UpdateDevice::kCpu, UpdateDevice::kCuda}) {
    for (const bool fused : {false, true}) {
      SettingOverrides overrides;
      overrides.arithmetic = device;
      const UpdatePlace first = {.format = {}, .update = 1, .fused = fused};
      const auto factors = [&](double corrects) {
        const OptimizerSettings s = Told("fusedadam", {{"bias_correction", corrects}}, overrides);
        return std::get<AdamFactors>(MakeUpdateFactors(s, first));
      };
      EXPECT_EQ(factors(0).step, -0.1f);
      EXPECT_EQ(factors(0).correction, 1.0f);
      EXPECT_NEAR(factors(1).step, -1.0f, 1e-6);
      EXPECT_NEAR(factors(1).correction, 0.0316f, 1e-4);
    }
  }
}

TEST(OptimizerSettings, ClassesWithOtherRulesAreRefused) {
  const auto refusal = [](const std::string& optimizer, const std::string& key) {
    try {
      Told(optimizer, {{key, 1}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  // Adafactor of transformers, AdamW and Adam of Cerebras.
  EXPECT_EQ(refusal("adafactor", "clip_threshold"),
            "f: updates of a class with clip_threshold cannot be replayed, expected the class of "
            "PyTorch, or --optimizer, got 'adafactor'");
  EXPECT_NE(refusal("adamw", "correct_bias"), "");
  EXPECT_NE(refusal("adam", "l2_regularization_rate"), "");
  EXPECT_NE(refusal("nadam", "eps"), "");
  EXPECT_EQ(refusal("adamw", "initial_lr"), "");  // a scheduler's
  SettingOverrides asked;
  asked.optimizer = OptimizerKind::kAdamW;
  EXPECT_EQ(Told("adamw", {{"correct_bias", 1}}, asked).kind, OptimizerKind::kAdamW);
}

}  // namespace
}  // namespace dlsim::sim
