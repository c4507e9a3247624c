// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/shadow.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <ranges>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> NumberIn(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

ShadowFailure FailureIn(const std::string& name) {
  for (const auto& [failure, known] : EnumNames(ShadowFailure())) {
    if (known == name) return failure;
  }
  throw std::invalid_argument(name);
}

// Recordings of before they were written have none.
std::vector<Shadow::Ceiling> CeilingsIn(const Json& object) {
  std::vector<Shadow::Ceiling> ceilings;
  for (const Json& ceiling : object.value("ceilings", Json::array())) {
    ceilings.push_back({ceiling.at("step"), ceiling.at("scale"), ceiling.at("module")});
  }
  return ceilings;
}

Shadow::Plan PlanIn(const Json& object) {
  Shadow::Plan plan;
  object.at("keep_float32").get_to(plan.keep_float32);
  object.at("sources").get_to(plan.sources);
  plan.sources.resize(plan.keep_float32.size());
  object.at("loss_in_float32").get_to(plan.loss_in_float32);
  object.at("steps").get_to(plan.steps);
  object.at("scale").get_to(plan.scale);
  plan.ceilings = CeilingsIn(object);
  plan.share = NumberIn(object, "share");
  return plan;
}

Shadow ShadowOf(const Json& object) {
  Shadow shadow;
  shadow.fails = FailureIn(object.at("fails").get<std::string>());
  object.at("steps").get_to(shadow.steps);
  object.at("bad").get_to(shadow.bad);
  object.at("overflows").get_to(shadow.overflows);
  object.at("error").get_to(shadow.error);
  shadow.loss = NumberIn(object, "loss");
  shadow.gradients = NumberIn(object, "gradients");
  object.at("scale").get_to(shadow.scale);
  shadow.ceilings = CeilingsIn(object);
  for (const Json& culprit : object.at("culprits")) {
    shadow.culprits.push_back({culprit.at("part"), culprit.at("module"), culprit.at("operation"),
                               NumberIn(culprit, "operands"), NumberIn(culprit, "result")});
  }
  object.at("modules").get_to(shadow.modules);
  if (object.contains("plan")) shadow.plan = PlanIn(object.at("plan"));
  return shadow;
}

// Returns what `read` makes of the text, nothing of an empty one.
template <class T>
T Reading(std::string_view text, const std::function<T(const nlohmann::json&)>& read) {
  if (text.empty()) return {};
  try {
    return read(nlohmann::json::parse(text));
  } catch (const std::exception& error) {
    throw InputError("shadow", "damaged", "what docs/traces.md describes", error.what());
  }
}

}  // namespace

std::optional<Shadow> ShadowIn(std::string_view text, const std::string& format,
                               const Conversion& conversion) {
  if (conversion != Conversion{.format = conversion.format}) return std::nullopt;
  return Reading<std::optional<Shadow>>(text, [&](const nlohmann::json& object) {
    const auto found = object.find(format);
    return found == object.end() ? std::nullopt : std::optional(ShadowOf(*found));
  });
}

std::string WhyNotRun(std::string_view text) {
  return Reading<std::string>(
      text, [](const nlohmann::json& object) { return object.value("why", std::string()); });
}

}  // namespace dlsim::sim
