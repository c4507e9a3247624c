// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/static_scale.h"

#include "sim/policies/policies.h"
#include "sim/policies/settings.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

const std::vector<ParameterInfo>& StaticScaleParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale", {"loss_scaling_factor"}, "1", "the loss scale, as float32", kStart},
  };
  return kParameters;
}

ConfiguredScaler MakeStaticScale(const ParameterMap& given, std::string_view) {
  const Settings settings{"static", StaticScaleParameters(), given};
  const float scale = settings.StaticScale("loss_scale");
  return {.scaler = LossScaler::Make<StaticScale>({scale}),
          .parameters = {{"loss_scale", double{scale}}},
          .notes = {}};
}

}  // namespace

PolicyInfo StaticPolicy() {
  return {.name = "static",
          .aliases = {},
          .summary = "a constant loss scale; no step is ever skipped",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = StaticScaleParameters(),
          .make = MakeStaticScale,
          .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
