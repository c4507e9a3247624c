// SPDX-License-Identifier: Apache-2.0
// The document dlsim.explain/1 and the path as CSV.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/number.h"
#include "sim/explain/explanation.h"

namespace dlsim::sim {
namespace {

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? JsonNumber(*value) : Json();
}

Json JsonMatch(const PolicyMatch& match) {
  Json parameters = Json::array();
  for (const ParameterEvidence& evidence : match.evidence) {
    parameters.push_back({{"name", evidence.name},
                          {"value", evidence.value},
                          {"seen", evidence.seen},
                          {"least", OrNull(evidence.least)},
                          {"most", OrNull(evidence.most)}});
  }
  return {{"policy", match.policy->name},
          {"settings", SetOptions(match)},
          {"params", JsonFields(match.configured.parameters)},
          {"evidence", std::move(parameters)}};
}

Json JsonBest(const Explanation& explanation) {
  const Inference& inference = explanation.inference;
  if (!inference.best) return {};
  const ScalePath& fitted = FittedPath(explanation.path, inference);
  const size_t good = inference.best->fit.explained;
  Json best = {{"policy", inference.best->policy->name},
               {"settings", SetOptions(*inference.best)},
               {"stretches", good},
               {"of_stretches", fitted.stretches.size()}};
  const bool all = good >= fitted.stretches.size();
  best["fails_at_line"] = all ? Json() : Json(fitted.stretches[good].line);
  return best;
}

Json JsonSkips(const SkipSummary& skips, int64_t first_step) {
  Json object = {{"verdict", NameOf(skips.kind)},
                 {"steps", skips.steps},
                 {"skipped", skips.skipped},
                 {"warm_up_skips", skips.warm_up_skips},
                 {"longest_run", skips.longest_run},
                 {"share", OrNull(skips.share)},
                 {"expected_share", OrNull(skips.expected_share)}};
  object["divergence_from"] =
      skips.tail ? Json(first_step + static_cast<int64_t>(*skips.tail)) : Json();
  return object;
}

Json JsonMinimum(const std::optional<MinimumForecast>& minimum) {
  if (!minimum) return {};
  const bool raises = !minimum->raises.empty();
  return {{"minimum", JsonNumber(minimum->minimum)},
          {"overflows", minimum->overflows},
          {"raises", raises ? Json(minimum->raises) : Json()},
          {"overflows_to_raise", raises ? Json(minimum->overflows_to_raise) : Json()}};
}

Json JsonRun(const WhatIfRun& run) {
  return {{"steps", run.steps},
          {"skipped_steps", run.skipped},
          {"uncertain_steps", run.uncertain},
          {"first_scale", JsonNumber(run.first_scale)},
          {"min_scale", JsonNumber(run.min_scale)},
          {"final_scale", JsonNumber(run.last_scale)},
          {"raises", run.raises.empty() ? Json() : Json(run.raises)}};
}

int64_t NumberOf(const Explanation& explanation, size_t index) {
  return (explanation.counted ? explanation.path.first_step : 1) + static_cast<int64_t>(index);
}

Json JsonBrackets(const Explanation& explanation) {
  Json brackets = Json::array();
  for (const GradientBracket& bracket : explanation.brackets) {
    brackets.push_back({{"first_step", NumberOf(explanation, bracket.first)},
                        {"last_step", NumberOf(explanation, bracket.last)},
                        {"scale", JsonNumber(bracket.scale)},
                        {"applied", explanation.counted ? Json(bracket.applied) : Json()},
                        {"skipped", bracket.skipped},
                        {"applied_at_most", OrNull(bracket.at_most)},
                        {"skipped_above", OrNull(bracket.above)}});
  }
  return brackets;
}

// The figures of a summary, each a number, as `replay` names them.
Json JsonSummary(const Explanation& explanation) {
  double low = 0, high = 0;
  const auto see = [&](double scale) {
    if (std::isnan(scale)) return;
    low = high == 0 ? scale : std::min(low, scale);
    high = std::max(high, scale);
  };
  for (const LoggedStep& step : explanation.steps) see(step.scale);
  if (explanation.steps.empty()) {  // one record
    for (const Stretch& stretch : explanation.path.stretches) {
      if (stretch.next) see(stretch.next->value);
    }
  }
  return {{"steps", explanation.skips.steps},
          {"skipped_steps", explanation.skips.skipped},
          {"warm_up_skips", explanation.skips.warm_up_skips},
          {"longest_run", explanation.skips.longest_run},
          {"min_scale", JsonNumber(low)},
          {"max_scale", JsonNumber(high)},
          {"matches", explanation.inference.matches.size()},
          {"applied_at_most", OrNull(explanation.totals.applied_at_most)},
          {"skipped_above", OrNull(explanation.totals.skipped_above)}};
}

}  // namespace

Json JsonExplanation(const Explanation& explanation) {
  const Inference& inference = explanation.inference;
  Json document = {{"schema", "dlsim.explain/1"},
                   {"stack", NameOf(explanation.path.stack)},
                   {"format", explanation.format},
                   {"counted", explanation.counted},
                   {"from_start", explanation.path.from_start},
                   {"notes", explanation.path.notes},
                   {"diagnosis",
                    {{"side", NameOf(explanation.diagnosis.side)},
                     {"evidence", explanation.diagnosis.evidence}}},
                   {"summary", JsonSummary(explanation)}};
  Json matches = Json::array();
  for (const PolicyMatch& match : inference.matches) matches.push_back(JsonMatch(match));
  document["policies"] = std::move(matches);
  document["best_prefix"] = JsonBest(explanation);
  document["tried"] = inference.tried;
  document["not_tried"] = inference.not_tried;
  document["undecided"] = inference.undecided;
  document["skips"] = JsonSkips(explanation.skips, NumberOf(explanation, 0));
  document["minimum"] = JsonMinimum(explanation.minimum);
  document["brackets"] = JsonBrackets(explanation);
  Json what_if = Json::array();
  for (const WhatIf& run : explanation.what_if) {
    what_if.push_back({{"policy", run.policy},
                       {"settings", run.settings},
                       {"uncertain_applied", JsonRun(run.applied)},
                       {"uncertain_skipped", JsonRun(run.skipped)}});
  }
  document["what_if"] = std::move(what_if);
  return document;
}

std::string CsvExplanation(const Explanation& explanation) {
  std::string text =
      fmt::format("{},scale,skipped,line\n", explanation.counted ? "step" : "overflow");
  for (size_t i = 0; i < explanation.steps.size(); ++i) {
    const LoggedStep& step = explanation.steps[i];
    const std::string scale = std::isnan(step.scale) ? "" : fmt::format("{}", step.scale);
    text += fmt::format("{},{},{},{}\n", NumberOf(explanation, i), scale, step.overflow ? 1 : 0,
                        step.line);
  }
  return text;
}

}  // namespace dlsim::sim
