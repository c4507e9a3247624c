// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/explanation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dlsim/error.h"
#include "sim/policies/policy_settings.h"

namespace dlsim::sim {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Returns the steps of a stretch as far as the log states them, and moves `scale` on.
void AppendRecorded(const Stretch& stretch, double& scale, std::vector<LoggedStep>& steps) {
  const auto overflows = static_cast<int64_t>(stretch.overflows.size());
  const int64_t count = stretch.steps.value_or(overflows);
  const double after = stretch.next ? stretch.next->value
                       : overflows > 0 && stretch.overflows.back().next
                           ? stretch.overflows.back().next->value
                           : scale;
  const auto moves = [&](const LoggedOverflow& o) { return o.next && o.next->value != scale; };
  const bool is_unchanged = after == scale && std::ranges::none_of(stretch.overflows, moves);
  for (int64_t at = 0; at < count; ++at) {
    // Where among the steps the overflows lie is not known: the last ones stand for them.
    const int64_t overflow = at - (count - overflows);
    double used = at == 0 || is_unchanged ? scale : kUnknown;
    if (overflow >= 0) {
      const auto& logged = stretch.overflows[static_cast<size_t>(overflow)];
      if (logged.used) used = logged.used->value;
    }
    if (at == count - 1 && stretch.used) used = stretch.used->value;
    steps.push_back({used, overflow >= 0, stretch.line, 0});
  }
  scale = after;
}

std::vector<LoggedStep> JoinSteps(const ScalePath& path, const Inference& inference) {
  std::vector<LoggedStep> steps;
  double scale = kUnknown;
  const ScalePath& fitted = FittedPath(path, inference);
  for (size_t i = 0; i < inference.cut; ++i) {
    AppendRecorded(path.stretches[i], scale, steps);
  }
  const PolicyMatch* const match = !inference.matches.empty() ? &inference.matches.front()
                                   : inference.best           ? &*inference.best
                                                              : nullptr;
  size_t next = 0;
  if (match && match->fit.explained > 0) {  // else its first scale is not the log's
    const std::vector<LoggedStep> known = StepsOf(match->configured.scaler, fitted, match->fit);
    steps.insert(steps.end(), known.begin(), known.end());
    next = match->fit.explained;
    scale = match->fit.end->scale();
  }
  for (; next < fitted.stretches.size(); ++next) {
    AppendRecorded(fitted.stretches[next], scale, steps);
  }
  return steps;
}

// One record reports no step, and so no policy.
bool TellsSteps(const ScalePath& path) {
  return std::ranges::any_of(path.stretches, [](const Stretch& s) { return s.steps != 0; });
}

// Returns the scale that the log leaves behind, for a step that it does not report.
std::optional<double> LastScale(const ScalePath& path) {
  if (path.stretches.empty()) return std::nullopt;
  const Stretch& last = path.stretches.back();
  if (last.next) return last.next->value;
  if (!last.overflows.empty() && last.overflows.back().next)
    return last.overflows.back().next->value;
  return std::nullopt;
}

std::optional<int64_t> GrowthInterval(const Inference& inference) {
  if (inference.matches.empty()) return std::nullopt;
  for (const ParameterEvidence& evidence : inference.matches.front().evidence) {
    if (evidence.least && evidence.most) return evidence.least;
  }
  return std::nullopt;
}

WhatIf RunPolicy(const PolicyInfo& policy, const std::vector<std::string>& settings,
                 const std::string& format, std::span<const LoggedStep> steps) {
  WhatIf what_if = {.policy = std::string(policy.name), .settings = settings};
  try {
    const ConfiguredScaler configured = policy.make(ResolveParameters(policy, settings), format);
    const LossScaler& scaler = configured.scaler;
    if (scaler.uses_absmax() || scaler.looks_ahead() || scaler.histogram_edge()) {
      throw UsageError("--policy", std::string(policy.name) + " uses the gradients themselves",
                       "a trace: dlsim replay");
    }
    what_if.applied = RunWhatIf(scaler, steps, Certainty::kApplied);
    what_if.skipped = RunWhatIf(scaler, steps, Certainty::kSkipped);
  } catch (const PolicyRefusal& refusal) {
    throw UsageError("policy " + std::string(policy.name), refusal.type + ": " + refusal.message);
  }
  return what_if;
}

// A setting given without a policy changes the one that was found.
std::vector<std::string> Override(const PolicyMatch& match, std::span<const std::string> settings) {
  ParameterMap parameters = match.parameters;
  for (auto& [name, value] : ResolveParameters(*match.policy, settings)) parameters[name] = value;
  std::vector<std::string> joined;
  for (const auto& [name, value] : parameters) joined.push_back(name + "=" + value);
  return joined;
}

void RunWhatIfs(const WhatIfRequest& request, Explanation& explanation) {
  if (request.policies.empty() && request.settings.empty()) return;
  if (explanation.path.stretches.empty()) {
    throw UsageError("--policy", "the log prints no loss scale", "a log with one");
  }
  if (!explanation.counted) {
    throw UsageError("--policy", "the log does not say how many steps lie between its messages",
                     "a log with step numbers");
  }
  const auto& matches = explanation.inference.matches;
  const auto run = [&](const PolicyInfo& policy, const std::vector<std::string>& settings) {
    explanation.what_if.push_back(
        RunPolicy(policy, settings, explanation.format, explanation.steps));
  };
  if (request.policies.empty()) {
    if (matches.empty()) {
      throw UsageError("--set", "no policy reproduces the log", "--policy to name one");
    }
    return run(*matches.front().policy, Override(matches.front(), request.settings));
  }
  const std::vector<const PolicyInfo*> policies = NamedPolicies(request.policies);
  RequireUsed(policies, request.settings, ParameterSettings());
  for (const PolicyInfo* policy : policies) {
    run(*policy, SettingsFor(*policy, request.settings, ParameterSettings(), policies.size() == 1));
  }
}

}  // namespace

Explanation Explain(ScalePath path, const NamedFormat& format, const WhatIfRequest& request,
                    const InferenceLimits& limits) {
  Explanation explanation = {.format = format.name};
  if (TellsSteps(path) && !HasMeans(path)) {
    explanation.inference = InferPolicy(path, explanation.format, limits);
  }
  explanation.path = std::move(path);
  explanation.counted = HasStepCounts(explanation.path);
  explanation.steps = JoinSteps(explanation.path, explanation.inference);
  if (!explanation.path.bounds_nothing) {
    explanation.brackets = FindBrackets(explanation.steps, {.format = format.format});
  }
  explanation.totals = TotalBrackets(explanation.brackets);
  explanation.skips =
      JudgeSkips(explanation.steps, {.growth_interval = GrowthInterval(explanation.inference),
                                     .counted = explanation.counted,
                                     .stopped = explanation.path.stopped_at_line.has_value() ||
                                                explanation.path.zero_at_line.has_value(),
                                     .from_start = explanation.path.from_start,
                                     .last_scale = LastScale(explanation.path),
                                     .without_scale = explanation.path.stretches.empty()});
  explanation.diagnosis =
      Diagnose(explanation.path, explanation.steps, explanation.skips, explanation.totals);
  if (!explanation.inference.matches.empty()) {
    explanation.minimum = ForecastMinimum(*explanation.inference.matches.front().fit.end);
  }
  RunWhatIfs(request, explanation);
  return explanation;
}

}  // namespace dlsim::sim
