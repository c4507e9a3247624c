// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/tuning.h"

#include <algorithm>
#include <span>

#include "dlsim/error.h"
#include "sim/advice/derive.h"
#include "sim/advice/evidence.h"
#include "sim/advice/policy_family.h"
#include "sim/advice/policy_score.h"
#include "sim/policies/static_scale.h"
#include "sim/replay/profile_source.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {
namespace {

std::vector<std::string> PoliciesFor(const TuneRequest& request, const std::string& format) {
  std::vector<std::string> policies = {std::string(TunedPolicy(request, format))};
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
  const PolicyInfo& policy = FindPolicy(TunedPolicy(request, format));
  ReplayRun prototype = {.format = format,
                         .policy = std::string(policy.name),
                         .conversion = request.conversion,
                         .rules = policy.rules,
                         .scaler = LossScaler::Make<StaticScale>({1})};
  prototype.conversion.format = ParseFormat(format).format;
  return prototype;
}

FormatTuning TuneFormat(const TuneRequest& request, const FormatAdvice& advice) {
  FormatTuning tuning;
  static_cast<FormatAdvice&>(tuning) = advice;
  for (const std::string& policy : PoliciesFor(request, advice.format)) {
    tuning.choices.push_back(
        Derive(FamilyOf(policy, advice.format, SettingsFor(request, policy)), advice));
  }
  tuning.fixed_scale = FixedScale(advice);
  tuning.least_loss = LeastLoss(advice.windows);
  return tuning;
}

void FindStride(const std::vector<StepWindow>& steps, TuneResult& result) {
  std::vector<int64_t> distances;
  for (size_t i = 1; i < steps.size(); ++i) distances.push_back(steps[i].step - steps[i - 1].step);
  if (distances.empty()) return;
  const auto [least, most] = std::ranges::minmax(distances);
  result.least_stride = least;
  result.most_stride = most;
}

}  // namespace

std::string_view TunedPolicy(const TuneRequest& request, const std::string& format) {
  if (!request.policy.empty()) return FindPolicy(request.policy).name;
  return ParseFormat(format).format == kFp16 ? "torch" : "cerebras-2.10";
}

bool HasFormat(const Ladder& ladder, const std::string& format) {
  return std::ranges::count(ladder.formats, ParseFormat(format).format, &NamedFormat::format) > 0;
}

void RequireOnLadder(const Ladder& ladder, const TuneRequest& request) {
  for (const std::string& name : request.formats) {
    if (!HasFormat(ladder, name)) {
      throw UsageError("--format", "not among those that the profile is exact for", "",
                       Quoted(name));
    }
  }
  const Conversion& conversion = request.conversion;
  if (std::ranges::count(ladder.roundings, conversion.rounding) == 0) {
    throw UsageError("--rounding", "not among those that the profile is exact for", "",
                     Quoted(NameOf(conversion.rounding)));
  }
  if (std::ranges::count(ladder.subnormals, conversion.subnormals) == 0) {
    throw UsageError("--subnormals", "not among those that the profile is exact for", "",
                     Quoted(NameOf(conversion.subnormals)));
  }
}

TuneResult Tune(const GradientSource& source, const TuneRequest& request, const Advice& advice,
                const ReplayOptions& options) {
  TuneResult result;
  result.estimated = source.edges() != nullptr;
  result.compares_current = request.current.has_value();
  if (!advice.gradients) return result;
  std::vector<ReplayRun> prototypes;
  for (const FormatAdvice& of_format : advice.formats) {
    prototypes.push_back(PrototypeOf(request, of_format.format));
    result.formats.push_back(TuneFormat(request, of_format));
  }
  ReplayEvidence(source, options, prototypes, request.current, result.formats);
  FindStride(result.formats.front().windows, result);
  for (FormatTuning& tuning : result.formats) {
    tuning.reason = ReasonOf(tuning);
    NoteDoubts(result.formats, tuning);
  }
  return result;
}

TuneResult Tune(const TraceReader& trace, const TuneRequest& request,
                const ReplayOptions& options) {
  TraceSource source(trace, options.accumulate_steps);
  source.LeaveOutLosses();
  return Tune(source, request, AdviseOn(source, request, options), options);
}

TuneResult Tune(const ProfileReader& profile, const TuneRequest& request,
                const ReplayOptions& options) {
  RequireOnLadder(profile.settings().ladder, request);
  ProfileSource source(profile, request.tensors);
  source.LeaveOutLosses();
  ReplayOptions replay = options;
  replay.step.accumulation = profile.settings().accumulation;
  return Tune(source, request, AdviseOn(source, request, replay), replay);
}

}  // namespace dlsim::sim
