// SPDX-License-Identifier: Apache-2.0
// Names, aliases, defaults and mistakes in the settings of policies.
#include "dlsim/sim/policies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// The values of a checkpoint as text, in which a NaN equals itself.
std::string StateOf(const LossScaler& scaler) {
  std::string text;
  for (const NamedValue& field : scaler.Checkpoint()) {
    std::visit([&](const auto& value) { text += fmt::format("{} ", value); }, field.value);
  }
  return text;
}

// A scaler takes another's place, of the same policy or not, and both go on by themselves.
TEST(Registry, ScalersAreAssigned) {
  for (const PolicyInfo& policy : Policies()) {
    LossScaler same = MakePolicy(policy.name).scaler, other = MakePolicy("static").scaler;
    LossScaler moved = MakePolicy(policy.name).scaler;
    for (int i = 0; i < 3; ++i) moved.Next({.overflow = i == 1});
    same = moved;
    other = moved;
    moved.Next({.overflow = true});
    EXPECT_EQ(StateOf(same), StateOf(other)) << policy.name;
    EXPECT_EQ(same.Next({.overflow = true}).skip, other.Next({.overflow = true}).skip);
    const auto alike = [](double x, double y) {
      return x == y || (std::isnan(x) && std::isnan(y));
    };
    EXPECT_TRUE(alike(same.scale(), other.scale())) << policy.name;
    EXPECT_TRUE(alike(same.scale(), moved.scale())) << policy.name;
  }
}

}  // namespace
}  // namespace dlsim::sim
