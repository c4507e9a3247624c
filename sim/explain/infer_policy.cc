// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/infer_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"
#include "sim/policies/projection.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// Making a scaler takes as long as this number of steps.
constexpr uint64_t kWorkOfMaking = 100;

// Where a growth interval is sought at most.
constexpr int64_t kLongestInterval = int64_t{1} << 30;

std::optional<ConfiguredScaler> Make(const PolicyInfo& policy, const ParameterMap& parameters,
                                     const std::string& format) {
  try {
    return policy.make(parameters, format);
  } catch (const PolicyRefusal&) {
  } catch (const Error&) {  // a number out of the parameter's range
  }
  return std::nullopt;
}

bool LooksAtGradients(const LossScaler& scaler) {
  return scaler.uses_absmax() || scaler.looks_ahead() || scaler.histogram_edge().has_value();
}

// The policies of the stack that wrote the log. Where DeepSpeed reports overflows, its scaler
// decides also under Megatron's training loop.
std::span<const std::string_view> OwnPolicies(const ScalePath& path) {
  static constexpr std::array<std::string_view, 4> kDeepSpeed = {
      "deepspeed", "deepspeed-0.16", "deepspeed-fp16-optimizer", "megatron"};
  static constexpr std::array<std::string_view, 4> kBefore0171 = {
      "deepspeed-0.16", "deepspeed", "deepspeed-fp16-optimizer", "megatron"};
  static constexpr std::array<std::string_view, 4> kFp16Optimizer = {
      "deepspeed-fp16-optimizer", "deepspeed", "deepspeed-0.16", "megatron"};
  static constexpr std::array<std::string_view, 2> kApex = {"apex", "apex-fp16-utils"};
  static constexpr std::array<std::string_view, 3> kMegatron = {"megatron", "deepspeed",
                                                                "deepspeed-0.16"};
  static constexpr std::array<std::string_view, 2> kFairseq = {"fairseq", "metaseq"};
  static constexpr std::array<std::string_view, 2> kMetaseq = {"metaseq", "fairseq"};
  static constexpr std::array<std::string_view, 1> kMxnet = {"mxnet"};
  static constexpr std::array<std::string_view, 2> kPaddle = {"paddle", "paddle-static"};
  static constexpr std::array<std::string_view, 1> kColossalAi = {"colossalai"};
  static constexpr std::array<std::string_view, 3> kMindSpore = {"mindspore-cell", "mindspore-amp",
                                                                 "mindspore-manager"};
  static constexpr std::array<std::string_view, 2> kMmcv = {"apex-fp16-utils",
                                                            "deepspeed-fp16-optimizer"};
  static constexpr std::array<std::string_view, 1> kFairseq2 = {"fairseq2"};
  static constexpr std::array<std::string_view, 1> kGuidedDiffusion = {"guided-diffusion"};
  static constexpr std::array<std::string_view, 1> kOther = {"torch"};
  switch (path.deepspeed) {
    case DeepSpeedScaler::kNone:
      break;
    case DeepSpeedScaler::kFp16Optimizer:
      return kFp16Optimizer;
    case DeepSpeedScaler::kBefore0171:
      return kBefore0171;
    case DeepSpeedScaler::kNewest:
      return kDeepSpeed;
  }
  switch (path.stack) {
    case LogStack::kDeepSpeed:
      return kDeepSpeed;
    case LogStack::kApex:
      return kApex;
    case LogStack::kMegatron:
      return kMegatron;
    case LogStack::kFairseq:
      return kFairseq;
    case LogStack::kMetaseq:
      return kMetaseq;
    case LogStack::kMxnet:
      return kMxnet;
    case LogStack::kPaddle:
      return kPaddle;
    case LogStack::kColossalAi:
      return kColossalAi;
    case LogStack::kMindSpore:
      return kMindSpore;
    case LogStack::kMmcv:
      return kMmcv;
    case LogStack::kFairseq2:
      return kFairseq2;
    case LogStack::kGuidedDiffusion:
      return kGuidedDiffusion;
    case LogStack::kSwin:
    case LogStack::kTorchNpu:
    case LogStack::kMarian:
    case LogStack::kTrainerState:
    case LogStack::kKeyValue:
    case LogStack::kTable:
      break;
  }
  return kOther;
}

// True if the scale never changes and is none that a dynamic scaler begins with.
bool IsConstant(const ScalePath& path) {
  std::optional<double> scale;
  for (const Stretch& stretch : path.stretches) {
    const auto& shown = stretch.next ? stretch.next : stretch.used;
    if (!stretch.overflows.empty() || (shown && scale.value_or(shown->value) != shown->value)) {
      return false;
    }
    if (shown) scale = shown->value;
  }
  return scale && (*scale == 1 || !IsPowerOfTwo(*scale)) && !HasMeans(path);
}

size_t DistanceFromStack(const ScalePath& path, std::string_view policy) {
  const auto own = OwnPolicies(path);
  return static_cast<size_t>(std::ranges::find(own, policy) - own.begin());
}

class Matcher {
 public:
  Matcher(const PolicyInfo& policy, const ScalePath& path, const std::string& format,
          uint64_t most_work)
      : policy_(policy), path_(path), format_(format), most_work_(most_work) {}

  // Returns the first fitting set, else the one that gets farthest.
  std::optional<PolicyMatch> Find(const PathMarks& marks) {
    std::optional<PolicyMatch> best;
    uint64_t work = 0;
    TryCandidates(policy_, marks, [&](const ParameterMap& parameters) {
      if (work > most_work_) {
        undecided_ = true;
        return true;
      }
      std::optional<PolicyMatch> match = Try(parameters, most_work_ - work);
      work += kWorkOfMaking;
      if (!match) return false;
      work += match->fit.work;
      undecided_ |= match->fit.undecided;
      if (!best || match->fit.explained > best->fit.explained) best = std::move(match);
      return best->fit.explained == path_.stretches.size();
    });
    return best;
  }

  std::vector<ParameterEvidence> Evidence(const PolicyMatch& match) const {
    std::vector<ParameterEvidence> all;
    for (const ParameterInfo& parameter : policy_.parameters) {
      const ParameterRole role = parameter.role;
      const std::string name(parameter.name);
      const auto set = match.parameters.find(name);
      const bool is_set = set != match.parameters.end();
      if (role == ParameterRole::kOther && !is_set) continue;
      ParameterEvidence evidence = {.name = name};
      evidence.value = is_set ? set->second : std::string(parameter.default_text);
      evidence.seen = role == ParameterRole::kOther || Tells(match, role, evidence);
      const bool is_interval = role == ParameterRole::kInterval;
      if (is_interval && HasStepCounts(path_)) FindRange(match, evidence);
      all.push_back(std::move(evidence));
    }
    return all;
  }

  bool undecided() const { return undecided_; }

 private:
  std::optional<PolicyMatch> Try(const ParameterMap& parameters, uint64_t most_work) const {
    std::optional<ConfiguredScaler> configured = Make(policy_, parameters, format_);
    if (!configured) return std::nullopt;
    PolicyFit fit = FitPolicy(configured->scaler, path_, most_work);
    return PolicyMatch{&policy_, parameters, std::move(*configured), std::move(fit), {}};
  }

  bool FitsWith(const PolicyMatch& match, const std::string& name, const std::string& value) const {
    ParameterMap parameters = match.parameters;
    parameters[name] = value;
    const std::optional<PolicyMatch> other = Try(parameters, most_work_);
    return other && other->fit.explained == path_.stretches.size();
  }

  // Whether the path would be another one with another value.
  bool Tells(const PolicyMatch& match, ParameterRole role, const ParameterEvidence& own) const {
    double value = 0;
    try {
      value = ParseNumber(own.value, "");
    } catch (const Error&) {  // "none": a limit that the path does not meet
      return false;
    }
    double other = std::isfinite(value * 2) ? value * 2 : value / 2;
    if (role == ParameterRole::kFloor || role == ParameterRole::kBackoff) other = value / 2;
    if (role == ParameterRole::kOverflows || role == ParameterRole::kInterval) other = value + 1;
    if (role == ParameterRole::kTolerance) other = value + 0.03;
    return !FitsWith(match, own.name, SettingText(other));
  }

  // The path may end before the interval does, or show it only to within a few steps.
  void FindRange(const PolicyMatch& match, ParameterEvidence& evidence) const {
    const int64_t value = ParseInteger(evidence.value, evidence.name);
    if (value < 1) return;
    const auto fits = [&](int64_t interval) {
      return FitsWith(match, evidence.name, std::to_string(interval));
    };
    evidence.least = value;
    int64_t low = value - 1;
    while (low > 0 && fits(low)) low = std::max<int64_t>(0, value - (value - low) * 2);
    while (low + 1 < *evidence.least) {
      const int64_t middle = low + (*evidence.least - low) / 2;
      (fits(middle) ? *evidence.least : low) = middle;
    }
    int64_t beyond = value + 1;
    while (beyond < kLongestInterval && fits(beyond)) beyond = value + (beyond - value) * 2;
    evidence.most = value;
    if (beyond >= kLongestInterval) {
      evidence.most.reset();
    } else {
      for (int64_t high = beyond; *evidence.most + 1 < high;) {
        const int64_t middle = *evidence.most + (high - *evidence.most) / 2;
        (fits(middle) ? *evidence.most : high) = middle;
      }
    }
    evidence.seen = evidence.least == value && evidence.most == value;
  }

  const PolicyInfo& policy_;
  const ScalePath& path_;
  const std::string& format_;
  uint64_t most_work_;
  bool undecided_ = false;
};

// A log that starts in mid-training does not show the counters; the first change of the scale
// resets them.
void CutToFirstChange(const ScalePath& path, Inference& inference) {
  if (path.from_start || path.stretches.empty()) return;
  std::optional<double> scale;
  for (size_t i = 0; i < path.stretches.size(); ++i) {
    const Stretch& stretch = path.stretches[i];
    const auto& shown = stretch.next ? stretch.next : stretch.used;
    const bool changes = !stretch.overflows.empty() || (shown && scale && shown->value != *scale);
    if (shown) scale = shown->value;
    if (!changes || !stretch.next) continue;
    ScalePath& rest = inference.rest.emplace(path);
    for (size_t k = 0; k <= i; ++k) rest.first_step += path.stretches[k].steps.value_or(0);
    rest.stretches.erase(rest.stretches.begin(),
                         rest.stretches.begin() + static_cast<std::ptrdiff_t>(i));
    rest.stretches.front() = {.line = stretch.line, .steps = 0, .next = stretch.next};
    inference.cut = i + 1;
    return;
  }
}

// The result of trying a policy.
struct Attempt {
  bool tried = false, undecided = false;
  std::optional<PolicyMatch> match;
};

Attempt Attempted(const PolicyInfo& policy, const ScalePath& path, const PathMarks& marks,
                  const std::string& format, uint64_t most_work) {
  const NoProjections notes_are_not_read;
  const auto standard = Make(policy, {}, format);
  if (standard && LooksAtGradients(standard->scaler)) return {};
  Matcher matcher(policy, path, format, most_work);
  Attempt attempt = {.tried = true, .match = matcher.Find(marks)};
  attempt.undecided = matcher.undecided();
  return attempt;
}

}  // namespace

Inference InferPolicy(const ScalePath& path, const std::string& format,
                      const InferenceLimits& limits) {
  const NoProjections notes_are_not_read;
  Inference inference;
  CutToFirstChange(path, inference);
  const ScalePath& fitted = FittedPath(path, inference);
  const PathMarks marks = FindMarks(fitted);
  const auto policies = Policies();
  const uint64_t one_way = WorkOfOneWay(fitted);
  const uint64_t most_work = limits.work + limits.ways * one_way;
  const uint64_t most_own_work = limits.own_work + limits.own_ways * one_way;
  std::vector<Attempt> attempts(policies.size());
  ParallelFor(policies.size(), [&](size_t i) {
    const bool is_own = DistanceFromStack(path, policies[i].name) < OwnPolicies(path).size();
    attempts[i] = Attempted(policies[i], fitted, marks, format, is_own ? most_own_work : most_work);
  });
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!attempts[i].tried) {
      inference.not_tried.emplace_back(policies[i].name);
      continue;
    }
    ++inference.tried;
    inference.undecided |= attempts[i].undecided;
    std::optional<PolicyMatch>& match = attempts[i].match;
    if (!match) continue;
    if (match->fit.explained == fitted.stretches.size()) {
      inference.matches.push_back(std::move(*match));
    } else if (!inference.best || match->fit.explained > inference.best->fit.explained) {
      inference.best = std::move(match);
    }
  }
  const bool is_constant = IsConstant(path);
  const auto rank = [&](const PolicyMatch& match) {
    const size_t distance = DistanceFromStack(path, match.policy->name);
    const bool is_static = is_constant && match.policy->name == "static";
    return std::pair(is_static ? 0 : distance + 1, match.parameters.size());
  };
  std::ranges::stable_sort(inference.matches, {}, rank);
  if (inference.matches.empty()) return inference;
  inference.best.reset();
  PolicyMatch& first = inference.matches.front();
  first.evidence = Matcher(*first.policy, fitted, format, most_own_work).Evidence(first);
  return inference;
}

std::vector<std::string> SetOptions(const PolicyMatch& match) {
  std::vector<std::string> settings;
  for (const auto& [name, value] : match.parameters) settings.push_back(name + "=" + value);
  return settings;
}

}  // namespace dlsim::sim
