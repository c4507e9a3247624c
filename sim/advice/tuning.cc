// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <variant>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/base/quantity.h"
#include "sim/replay/harm.h"

namespace dlsim::sim {
namespace {

// Returns the policy's own name of the parameter in a role; empty if none is. Of two floors, which
// fairseq has, it is the last: no scale passes that one.
std::string NameOfRole(const PolicyInfo& policy, ParameterRole role) {
  std::string_view name;
  for (const ParameterInfo& parameter : policy.parameters) {
    if (parameter.role == role) name = parameter.name;
  }
  return std::string(name);
}

double DefaultNumber(const std::vector<NamedValue>& parameters, const std::string& name) {
  for (const NamedValue& parameter : parameters) {
    if (parameter.name != name) continue;
    if (const auto* number = std::get_if<double>(&parameter.value)) return *number;
    if (const auto* integer = std::get_if<int64_t>(&parameter.value)) {
      return static_cast<double>(*integer);
    }
  }
  return 0;  // "none", or no such parameter
}

// Returns the lowest power of two from 2^-24 on that the policy takes in the parameter's place.
double LowestAccepted(const PolicyFamily& family, double ScaleParameters::*parameter) {
  for (int exponent = -24; exponent < 0; ++exponent) {
    ScaleParameters trial = family.defaults;
    trial.*parameter = std::ldexp(1.0, exponent);
    if (parameter == &ScaleParameters::init) trial.min = std::fmin(trial.min, trial.init);
    if (family.Make(trial)) return trial.*parameter;
  }
  return 1;
}

ConfiguredScaler MakeDefaults(const PolicyInfo& policy, const ParameterMap& parameters,
                              const std::string& format) {
  try {
    return policy.make(parameters, format);
  } catch (const PolicyRefusal& refusal) {
    throw UsageError("policy " + std::string(policy.name), refusal.type + ": " + refusal.message);
  }
}

// Less gradient lost is no reason to prefer other parameters: a step of a hundred, or one spike.
double WorthAChange(size_t steps) {
  return std::fmax(0.01, 1.5 / static_cast<double>(std::max<size_t>(1, steps)));
}

constexpr size_t kStepBudget = 10'000'000;  // steps predicted for one policy: less than a second

double PowerBelow(double value) { return std::exp2(std::floor(std::log2(value))); }

// Of the steps that some scale makes finite the largest scale; a twentieth of them may have less.
double UsualLimit(std::span<const StepWindow> windows) {
  std::vector<float> limits;
  for (const StepWindow& step : windows) {
    if (!step.hopeless) limits.push_back(step.finite_scale);
  }
  if (limits.empty()) return std::ldexp(1.0, kHeadroom);
  std::ranges::sort(limits);
  return limits[limits.size() / 20];
}

// The scale of the verdict. Where it needs none, a policy that scales all the same starts at the
// highest with head-room: the study found it to lose least of what whole tensors do not show
// (docs/evidence.md). A format with float32's exponents has nothing to gain.
double StartOf(const FormatAdvice& advice) {
  const double scale = FixedScale(advice);
  const bool wide = HasRangeOfFloat32(ParseFormat(advice.format).format);
  if (scale != 1 || wide || !advice.safest) return scale;
  return std::ldexp(1.0, std::max(0, advice.safest->highest));
}

// Tries sets of parameters, the preferred ones first, until one is as good as can be.
class Deriver {
 public:
  Deriver(const PolicyFamily& family, const FormatAdvice& advice)
      : family_(family),
        windows_(advice.windows),
        least_loss_(LeastLoss(windows_)),
        worth_(WorthAChange(windows_.size())),
        usual_limit_(UsualLimit(windows_)),
        start_(StartOf(advice)) {
    const int bias = ParseFormat(advice.format).format.bias;
    highest_exponent_ = std::min(bias, kHighestScaleExponent);
  }

  PolicyChoice Run() {
    for (const double init : Starts()) {
      for (const int64_t interval : Intervals()) TryLimits(init, interval);
      if (Done()) break;
    }
    // The windows move: any start may do better, one nearby most likely.
    const int near = std::clamp(std::ilogb(start_), kLowestScaleExponent, kHighestScaleExponent);
    for (int distance = 1; distance <= kHighestScaleExponent - kLowestScaleExponent; ++distance) {
      for (const int exponent : {near + distance, near - distance}) {
        if (exponent < kLowestScaleExponent || exponent > kHighestScaleExponent) continue;
        for (const int64_t interval : Intervals()) TryLimits(std::ldexp(1.0, exponent), interval);
      }
    }
    PolicyChoice choice;
    choice.policy = family_.policy;
    choice.evaluations = tried_.size();
    choice.parameters = Preferred();
    choice.named = family_.Named(choice.parameters);
    choice.scaler = family_.Make(choice.parameters);
    return choice;
  }

 private:
  struct Trial {
    ScaleParameters parameters;
    PolicyScore score;
  };

  bool Done() const { return good_ || tried_.size() * windows_.size() > kStepBudget; }

  // The first that loses hardly more than the best.
  ScaleParameters Preferred() const {
    if (tried_.empty()) return family_.defaults;
    const auto rank = [](const PolicyScore& s) { return std::tuple(!s.eligible(), s.mean_loss); };
    const PolicyScore& best = std::ranges::min_element(tried_, {}, [&](const Trial& trial) {
                                return rank(trial.score);
                              })->score;
    const auto chosen = std::ranges::find_if(tried_, [&](const Trial& trial) {
      return trial.score.eligible() == best.eligible() &&
             trial.score.mean_loss <= best.mean_loss + worth_;
    });
    return chosen->parameters;
  }

  void TryLimits(double start, int64_t interval) {
    const double init = std::fmax(start, family_.lowest_init);
    for (const double min : Floors(init)) {
      for (const double max : {PreferredMax(init), init}) {
        if (Done()) return;
        Try({init, min, max, interval, family_.defaults.hysteresis});
      }
    }
  }

  void Try(const ScaleParameters& parameters) {
    std::optional<ConfiguredScaler> configured = family_.Make(parameters);
    if (!configured) return;
    const PolicyScore score = Predict(std::move(configured->scaler), windows_);
    good_ = score.eligible() && score.mean_loss <= least_loss_ + worth_;
    tried_.push_back({parameters, score});
  }

  std::vector<double> Starts() const {
    std::vector<double> starts = {start_};
    // What is used today stays if it has head-room.
    const double own = family_.defaults.init;
    const bool room = std::ldexp(own, kHeadroom) <= usual_limit_;
    if (family_.current && room) starts.insert(starts.begin(), own);
    const auto first = std::ranges::find_if_not(windows_, &StepWindow::hopeless);
    if (first != windows_.end() && first->finite_scale > 0) {
      starts.push_back(std::ldexp(PowerBelow(first->finite_scale), -kHeadroom));
    }
    if (IsPowerOfTwo(own)) starts.push_back(own);
    for (double& start : starts) {
      start = std::clamp(start, std::ldexp(1.0, kLowestScaleExponent),
                         std::ldexp(1.0, kHighestScaleExponent));
    }
    return starts;
  }

  // The stack's own, then round numbers, the nearest first.
  std::vector<int64_t> Intervals() const {
    const int64_t own = family_.defaults.interval;
    std::vector<int64_t> intervals = {own};
    for (int64_t decade = 1; decade <= 1000; decade *= 10) {
      for (const int64_t digit : {1, 2, 5}) intervals.push_back(digit * decade);
    }
    std::ranges::stable_sort(intervals, {}, [&](int64_t interval) {
      return std::fabs(std::log2(static_cast<double>(interval) / static_cast<double>(own)));
    });
    return intervals;
  }

  // The stack's own, room below the start, room below what the steps need, none at all.
  std::vector<double> Floors(double init) const {
    if (family_.min.empty()) return {0};
    // The documented 2e-14 of Cerebras is a misprint.
    const double own = std::fmax(family_.defaults.min, 0x1p-14);
    const double needed = std::ldexp(PowerBelow(usual_limit_), -kHeadroom);
    std::vector<double> floors;
    for (const double floor : {own, std::ldexp(init, -kHeadroom), needed, init}) {
      const double allowed = std::fmax(std::fmin(floor, init), family_.lowest_min);
      if (std::ranges::count(floors, allowed) == 0) floors.push_back(allowed);
    }
    return floors;
  }

  double PreferredMax(double init) const {
    if (family_.max.empty()) return 0;
    const double own = IsPowerOfTwo(family_.defaults.max) ? family_.defaults.max
                                                          : std::ldexp(1.0, highest_exponent_);
    return own >= init ? own : std::ldexp(init, kHeadroom);
  }

  const PolicyFamily& family_;
  std::span<const StepWindow> windows_;
  double least_loss_;
  double worth_;
  double usual_limit_;
  int highest_exponent_ = 0;
  double start_ = 1;
  std::vector<Trial> tried_;
  bool good_ = false;  // the last one loses as little as any can
};

}  // namespace

std::string_view TunedPolicy(const TuneRequest& request, const std::string& format) {
  if (!request.policy.empty()) return FindPolicy(request.policy).name;
  return ParseFormat(format).format == kFp16 ? "torch" : "cerebras-2.10";
}

std::vector<NamedValue> PolicyFamily::Named(const ScaleParameters& parameters) const {
  std::vector<NamedValue> named = {{init, parameters.init},
                                   {min, parameters.min},
                                   {max, parameters.max},
                                   {interval, parameters.interval},
                                   {hysteresis, parameters.hysteresis}};
  std::erase_if(named, [](const NamedValue& parameter) { return parameter.name.empty(); });
  return named;
}

std::optional<ConfiguredScaler> PolicyFamily::Make(const ScaleParameters& parameters) const {
  const bool starts = parameters.init >= 1 && IsPowerOfTwo(parameters.init);
  if (powers_of_two_from_one && !starts) return std::nullopt;
  ParameterMap settings = base;
  for (const NamedValue& parameter : Named(parameters)) {
    const auto* scale = std::get_if<double>(&parameter.value);
    if (scale == nullptr) {
      settings[parameter.name] = std::to_string(std::get<int64_t>(parameter.value));
    } else if (*scale != 0) {
      settings[parameter.name] = fmt::format("{}", *scale);
    }
  }
  try {
    return policy->make(settings, format);
  } catch (const PolicyRefusal&) {
    return std::nullopt;
  }
}

PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings) {
  PolicyFamily family;
  family.policy = &FindPolicy(policy);
  family.format = format;
  const PolicyInfo& info = *family.policy;
  family.init = NameOfRole(info, ParameterRole::kStart);
  family.min = NameOfRole(info, ParameterRole::kFloor);
  family.max = NameOfRole(info, ParameterRole::kCeiling);
  family.interval = NameOfRole(info, ParameterRole::kInterval);
  family.hysteresis = NameOfRole(info, ParameterRole::kOverflows);
  family.base = ResolveParameters(info, settings);
  if (family.init != "loss_scale") family.base.erase("loss_scale");
  family.current = !settings.empty();
  const ConfiguredScaler configured = MakeDefaults(info, family.base, format);
  const bool magnitudes = configured.scaler.uses_absmax() || configured.scaler.looks_ahead() ||
                          configured.scaler.histogram_edge();
  if (family.init.empty() || family.interval.empty() || magnitudes ||
      info.rules.granularity != ScaleGranularity::kModel) {
    throw UsageError("--policy", "nothing to tune",
                     "a policy with one loss scale, an initial scale and an interval",
                     Quoted(info.name));
  }
  const auto number = [&](const std::string& name) {
    return DefaultNumber(configured.parameters, name);
  };
  family.defaults = {
      .init = number(family.init),
      .min = number(family.min),
      .max = number(family.max),
      .interval = static_cast<int64_t>(number(family.interval)),
      .hysteresis = std::max<int64_t>(1, static_cast<int64_t>(number(family.hysteresis)))};
  family.powers_of_two_from_one = info.name.starts_with("deepspeed");
  family.lowest_min = family.min.empty() ? 0 : LowestAccepted(family, &ScaleParameters::min);
  family.lowest_init = LowestAccepted(family, &ScaleParameters::init);
  return family;
}

double LossOf(const ReplayStep& step, const Conversion& conversion) {
  if (step.activations.nonfinite_outputs > 0) return 1;
  const bool parameters_only = step.activation_harm.worst_tensor.empty();
  const double harm = std::fmax(step.harm.mean, step.activation_harm.mean);
  return harm <= HarmLimit(conversion, parameters_only) ? 0 : std::fmin(1, harm);
}

PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion) {
  PolicyScore score;
  score.mean_loss = static_cast<double>(steps - std::min(steps, result.steps.size()));
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const ReplayStep& step = result.steps[i];
    const bool lost = step.skipped || !step.finite;
    score.mean_loss += lost ? 1.0 : LossOf(step, conversion);
    score.skipped += lost;
    if (score.skipped == i + 1) score.first_skips = score.skipped;
    score.grew |= i > 0 && step.scale > result.steps[i - 1].scale;
  }
  score.events = result.events.size();
  if (steps > 0) score.mean_loss /= static_cast<double>(steps);
  if (result.steps.empty()) return score;
  score.min_scale = result.summary.min_scale;
  score.max_scale = result.summary.max_scale;
  score.final_scale = result.steps.back().next_scale;
  return score;
}

PolicyScore Predict(LossScaler scaler, std::span<const StepWindow> windows) {
  PolicyScore score = {.mean_loss = 0};
  const size_t steps = windows.size();
  for (size_t i = 0; i < steps; ++i) {
    const double scale = scaler.scale();
    const bool finite = !windows[i].hopeless && scale <= windows[i].finite_scale;
    const ScalerDecision decision = scaler.Next({.overflow = !finite});
    score.mean_loss += finite ? windows[i].LossAt(scale) : 1.0;
    score.skipped += !finite;
    score.events += decision.event.has_value();
    if (decision.event && decision.event->fatal) {
      score.mean_loss += static_cast<double>(steps - i - 1);
      break;
    }
  }
  if (steps > 0) score.mean_loss /= static_cast<double>(steps);
  return score;
}

double LeastLoss(std::span<const StepWindow> windows) {
  double lost = 0;
  for (const StepWindow& step : windows) {
    const bool is_safe = step.lowest_scale() <= step.highest_scale || step.harm_below.empty();
    lost += step.hopeless ? 1 : is_safe ? 0 : step.harm_below.front();
  }
  return windows.empty() ? 0 : lost / static_cast<double>(windows.size());
}

double FixedScale(const FormatAdvice& advice) {
  if (advice.safest) return std::ldexp(1.0, advice.safest->exponent);
  return std::ldexp(PowerBelow(UsualLimit(advice.windows)), -kHeadroom);
}

PolicyChoice Derive(const PolicyFamily& family, const FormatAdvice& advice) {
  return Deriver(family, advice).Run();
}

}  // namespace dlsim::sim
