// SPDX-License-Identifier: Apache-2.0
// Names, aliases, defaults and mistakes in the settings of policies.
#include "dlsim/sim/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(FindPolicy, NamesAndAliasesAreUnique) {
  std::set<std::string_view> names;
  for (const PolicyInfo& policy : Policies()) {
    EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
    for (const std::string_view alias : policy.aliases) {
      EXPECT_TRUE(names.insert(alias).second) << alias;
      EXPECT_EQ(&FindPolicy(alias), &policy);
    }
  }
}

TEST(FindPolicy, SuggestsTheNearestName) {
  std::string names;
  for (const PolicyInfo& policy : Policies()) {
    names.append(names.empty() ? "" : ", ").append(policy.name);
  }
  EXPECT_TRUE(names.starts_with("static, cerebras, cerebras-2.10, cerebras-tf, torch, torch-1.13"));
  EXPECT_EQ(
      UsageMessage("torhc", {}),
      "policy: unknown name (did you mean 'torch'?), expected one of " + names + ", got 'torhc'");
}

TEST(FindPolicy, EachPolicyBeginsWithOneScale) {
  for (const PolicyInfo& policy : Policies()) {
    const auto starts = std::ranges::count(policy.parameters, ParameterRole::kStart,
                                           [](const ParameterInfo& p) { return p.role; });
    EXPECT_EQ(starts, policy.name == "adaloss" ? 0 : 1) << policy.name;
  }
}

TEST(ResolveParameters, RefusesANegativeScaleInEveryPolicy) {
  for (const PolicyInfo& policy : Policies()) {
    for (const std::string name : {"init_scale", "loss_scale", "scale", "scale_max"}) {
      for (const ParameterInfo& parameter : policy.parameters) {
        const bool alias = std::ranges::find(parameter.aliases, name) != parameter.aliases.end();
        if (parameter.name != name && !alias) continue;
        const std::string message = UsageMessage(policy.name, {name + "=-8"});
        EXPECT_NE(message.find("not a loss scale"), message.npos) << policy.name << " " << message;
      }
    }
  }
  EXPECT_EQ(UsageMessage("torch", {"init_scale=-2^3"}),
            "torch.init_scale: not a loss scale, expected a positive number, got '-2^3'");
}

TEST(ResolveParameters, AcceptsTheOtherStacksSpellings) {
  EXPECT_EQ(MakePolicy("cerebras-2.10", {"initial_loss_scale=8"}).scaler.scale(), 8);
  EXPECT_EQ(MakePolicy("torch", {"initial_loss_scale=8"}).scaler.scale(), 8);
  LossScaler scaler = MakePolicy("cerebras-tf", {"init_scale=8", "steps_per_increase=2"}).scaler;
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Next({.overflow = false});
  scaler.Next({.overflow = false});
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(ResolveParameters, RefusesWhatItCannotPlace) {
  EXPECT_EQ(UsageMessage("static", {"los_scale=1"}),
            "static: unknown parameter (did you mean 'loss_scale'?), expected one of loss_scale, "
            "got 'los_scale'");
  EXPECT_EQ(UsageMessage("static", {"loss_scale"}),
            "static: not a setting, expected KEY=VALUE, got 'loss_scale'");
  EXPECT_EQ(UsageMessage("torch", {"init_scale=1", "initial_loss_scale=2"}),
            "torch: parameter init_scale is given twice");
}

TEST(Registry, RefuseValuesOfTheWrongType) {
  EXPECT_EQ(UsageMessage("torch", {"growth_interval=1.5"}),
            "torch.growth_interval: not a 64-bit integer, expected an integer such as 2000 or "
            "2^10, got '1.5'");
  EXPECT_NE(UsageMessage("torch", {"enabled=maybe"}), "");
  EXPECT_NE(UsageMessage("torch", {"init_scale="}), "");
  EXPECT_NE(UsageMessage("cerebras", {"loss_scale=dynamics"}), "");
  EXPECT_NE(UsageMessage("cerebras-2.10", {"fp16_type=fp8"}), "");
  EXPECT_NE(UsageMessage("cerebras-tf", {"increment_period=2^60"}), "");
  for (const std::string value : {"0", "-1", "1e39", "2^-200"}) {
    EXPECT_NE(UsageMessage("static", {"loss_scale=" + value}), "") << value;
  }
}

TEST(Registry, DescribeEveryParameterInTheOrderOfTheTable) {
  for (const PolicyInfo& policy : Policies()) {
    const ConfiguredScaler configured = policy.make({}, "");
    ASSERT_EQ(configured.parameters.size(), policy.parameters.size()) << policy.name;
    for (size_t i = 0; i < policy.parameters.size(); ++i) {
      EXPECT_EQ(configured.parameters[i].name, policy.parameters[i].name) << policy.name;
    }
  }
}

TEST(Registry, WriteTheirDefaultsAsAUserWould) {
  for (const PolicyInfo& policy : Policies()) {
    ParameterMap defaults;
    for (const ParameterInfo& info : policy.parameters) {
      defaults.emplace(info.name, info.default_text);
    }
    const ConfiguredScaler spelled_out = policy.make(defaults, "");
    const ConfiguredScaler implied = policy.make({}, "");
    ASSERT_EQ(spelled_out.parameters.size(), implied.parameters.size());
    for (size_t i = 0; i < implied.parameters.size(); ++i) {
      EXPECT_EQ(spelled_out.parameters[i].value, implied.parameters[i].value)
          << policy.name << "." << implied.parameters[i].name;
    }
  }
}

// Clean steps at once leave the state that as many single ones do.
TEST(Registry, CleanStepsAtOnceAreSingleOnes) {
  for (const PolicyInfo& policy : Policies()) {
    LossScaler at_once = MakePolicy(policy.name).scaler, single = at_once;
    int64_t taken = 0;
    for (int calls = 0; calls < 40; ++calls) {
      const double before = single.scale();
      const LossScaler::CleanSteps steps = at_once.NextClean(200);
      ASSERT_TRUE(steps.count >= 1 && steps.count <= 200) << policy.name;
      ScalerDecision decision;
      for (int64_t i = 0; i < steps.count; ++i) {
        const bool stands = single.scale() == before || (std::isnan(before) && i == 0);
        EXPECT_TRUE(stands) << policy.name << ", step " << taken + i;
        decision = single.Next({});
      }
      taken += steps.count;
      std::string expected, found;
      single.AppendState(expected);
      at_once.AppendState(found);
      EXPECT_EQ(found, expected) << policy.name << ", step " << taken;
      EXPECT_EQ(steps.last.skip, decision.skip) << policy.name;
      EXPECT_EQ(steps.last.event.has_value(), decision.event.has_value()) << policy.name;
      const bool ends = decision.skip || decision.event || single.scale() != before;
      EXPECT_TRUE(ends || steps.count == 200) << policy.name << ", step " << taken;
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
