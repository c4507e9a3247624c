// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/tuning.h"

#include <algorithm>
#include <span>

#include "sim/advice/derive.h"
#include "sim/advice/evidence.h"
#include "sim/advice/policy_family.h"
#include "sim/advice/policy_score.h"
#include "sim/policies/static_scale.h"

namespace dlsim::sim {
namespace {

std::vector<std::string> PoliciesFor(const TuneRequest& request, const std::string& format) {
  std::vector<std::string> policies = {std::string(FindPolicy(request.policy).name)};
  if (format != "fp16") return policies;
  for (const std::string& policy : request.fp16_policies) {
    if (policy != policies.front()) policies.push_back(policy);
  }
  return policies;
}

// The settings of the current policy, if it is this one.
std::span<const std::string> SettingsFor(const TuneRequest& request, std::string_view policy) {
  const bool current = request.current && FindPolicy(request.current->policy).name == policy;
  return current ? std::span<const std::string>(request.current->settings)
                 : std::span<const std::string>();
}

// A run of the format whose scaler is still to come.
ReplayRun PrototypeOf(const TuneRequest& request, const std::string& format) {
  const PolicyInfo& policy = FindPolicy(request.policy);
  ReplayRun prototype = {.format = format,
                         .policy = std::string(policy.name),
                         .conversion = request.conversion,
                         .rules = policy.rules,
                         .scaler = LossScaler::Make<StaticScale>({1})};
  prototype.conversion.format = ParseFormat(format).format;
  return prototype;
}

FormatTuning TuneFormat(const TuneRequest& request, const FormatAdvice& advice,
                        const Conversion& conversion) {
  FormatTuning tuning;
  tuning.format = advice.format;
  tuning.facts = FactsOf(advice, conversion, request.checked);
  for (const std::string& policy : PoliciesFor(request, advice.format)) {
    const PolicyFamily family = FamilyOf(policy, advice.format, SettingsFor(request, policy));
    tuning.choices.push_back(Derive(family, advice, tuning.facts));
  }
  tuning.best_static = StaticOf(advice, tuning.facts);
  tuning.least_loss = LeastLoss(tuning.facts);
  tuning.hopeless_steps = advice.hopeless_steps;
  tuning.unscalable_steps = advice.empty_steps;
  tuning.window = WindowOf(tuning.facts);
  tuning.headroom = HeadroomOf(tuning.facts);
  return tuning;
}

void FindStride(const std::vector<StepFacts>& facts, TuneResult& result) {
  result.steps = facts.size();
  std::vector<int64_t> distances;
  for (size_t i = 1; i < facts.size(); ++i) distances.push_back(facts[i].step - facts[i - 1].step);
  if (distances.empty()) return;
  const auto [least, most] = std::ranges::minmax(distances);
  result.least_stride = least;
  result.most_stride = most;
}

}  // namespace

TuneResult Tune(const TuneSource& source, const TuneRequest& request, const Advice& advice) {
  TuneResult result;
  result.estimated = source.estimated;
  result.compares_current = request.current.has_value();
  std::vector<ReplayRun> prototypes;
  for (const FormatAdvice& of_format : advice.formats) {
    prototypes.push_back(PrototypeOf(request, of_format.format));
    result.formats.push_back(TuneFormat(request, of_format, prototypes.back().conversion));
  }
  const FormatAdvice& any = advice.formats.front();
  ReplayEvidence(source, any.tensors.size() + any.noise_tensors.size(), result.formats, prototypes,
                 request.current);
  FindStride(result.formats.front().facts, result);
  for (size_t f = 0; f < result.formats.size(); ++f) Judge(advice.formats[f], result.formats[f]);
  for (FormatTuning& tuning : result.formats) NoteDoubts(tuning, result);
  return result;
}

}  // namespace dlsim::sim
