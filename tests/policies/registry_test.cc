// SPDX-License-Identifier: Apache-2.0
// Names, aliases, defaults and mistakes in the settings of policies.
#include "dlsim/sim/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
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

class CleanSteps : public testing::TestWithParam<CleanUntil> {};
INSTANTIATE_TEST_SUITE_P(Registry, CleanSteps,
                         testing::Values(CleanUntil::kChange, CleanUntil::kEnd));

// Settings of a policy that differ in its growth interval; those that it refuses are left out.
std::vector<LossScaler> WithSomeIntervals(const PolicyInfo& policy) {
  std::vector<LossScaler> scalers = {MakePolicy(policy.name).scaler};
  for (const ParameterInfo& parameter : policy.parameters) {
    if (parameter.role != ParameterRole::kInterval) continue;
    for (const char* interval : {"1", "2", "9", "25", "1000000000"}) {
      try {
        const ParameterMap parameters = {{std::string(parameter.name), interval}};
        scalers.push_back(policy.make(parameters, "fp16").scaler);
      } catch (const PolicyRefusal&) {
      } catch (const Error&) {
      }
    }
  }
  return scalers;
}

// Takes `most` clean steps at once, and singly, and expects the same.
void ExpectTheSame(int64_t most, CleanUntil until, LossScaler& at_once, LossScaler& single) {
  const bool to_change = until == CleanUntil::kChange;
  const double before = single.scale();
  const LossScaler::CleanSteps steps = at_once.NextClean(most, until);
  ASSERT_TRUE(steps.count >= 1 && steps.count <= most);
  ScalerDecision decision;
  for (int64_t i = 0; i < steps.count; ++i) {
    const bool stands = single.scale() == before || (std::isnan(before) && i == 0);
    EXPECT_TRUE(stands || !to_change) << "step " << i;
    decision = single.Next({});
    EXPECT_TRUE(i + 1 == steps.count || !(decision.skip || decision.event)) << "step " << i;
  }
  std::string expected, found;
  single.AppendState(expected);
  at_once.AppendState(found);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(steps.last.skip, decision.skip);
  EXPECT_EQ(steps.last.event.has_value(), decision.event.has_value());
  const bool changes = to_change && single.scale() != before;
  EXPECT_TRUE(decision.skip || decision.event || changes || steps.count == most);
}

// Clean steps at once leave the state that as many single ones do, from whatever state.
TEST_P(CleanSteps, AtOnceAreSingleOnes) {
  constexpr std::array<int64_t, 7> kNumbers = {200, 1, 7, 8, 30, 2, 450};
  for (const PolicyInfo& policy : Policies()) {
    for (LossScaler& at_once : WithSomeIntervals(policy)) {
      LossScaler single = at_once;
      std::mt19937 random(7);
      for (int calls = 0; calls < 60 && !testing::Test::HasFailure(); ++calls) {
        SCOPED_TRACE(std::string(policy.name) + ", call " + std::to_string(calls));
        ExpectTheSame(kNumbers[calls % kNumbers.size()], GetParam(), at_once, single);
        for (auto overflows = calls < 20 ? 0 : random() % 3; overflows > 0; --overflows) {
          at_once.Next({.overflow = true});
          single.Next({.overflow = true});
        }
      }
    }
  }
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
    std::string a, b;
    same.AppendState(a);
    other.AppendState(b);
    EXPECT_EQ(a, b) << policy.name;
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
