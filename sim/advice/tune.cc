// SPDX-License-Identifier: Apache-2.0
// The parameters that follow from the windows of the steps, and then the tuning: parameters for
// each format, and what supports them. Replayed are the recommendation itself and the stacks'
// defaults.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <variant>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/advice/tuning.h"
#include "sim/base/quantity.h"
#include "sim/policies/policy.h"
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

// Powers of two that are tried and recommended.
constexpr int kLowestScaleExponent = -24, kHighestScaleExponent = 40;

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

// Predicts the score of a scaler that learns nothing of a step but whether it was finite.
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

// The mean of what each step loses at the best power of two, by hindsight.
double LeastLoss(std::span<const StepWindow> windows) {
  double lost = 0;
  for (const StepWindow& step : windows) {
    const bool is_safe = step.lowest_scale() <= step.highest_scale || step.harm_below.empty();
    lost += step.hopeless ? 1 : is_safe ? 0 : step.harm_below.front();
  }
  return windows.empty() ? 0 : lost / static_cast<double>(windows.size());
}

// What an applied step loses: all if an activation gradient overflows, nothing as long as its harm
// (docs/numerics.md) stays below the threshold, else the mean over tensors of what each loses of
// its own energy, the larger of parameter and activation gradients.
double LossOf(const ReplayStep& step, const Conversion& conversion) {
  if (step.activations.nonfinite_outputs > 0) return 1;
  const bool parameters_only = step.activation_harm.worst_tensor.empty();
  const double harm = std::fmax(step.harm.mean, step.activation_harm.mean);
  return harm <= HarmLimit(conversion, parameters_only) ? 0 : std::fmin(1, harm);
}

// Returns the scale of the verdict, or the one that is safe at the most steps.
double FixedScale(const FormatAdvice& advice) {
  if (advice.safest) return std::ldexp(1.0, advice.safest->exponent);
  return std::ldexp(PowerBelow(UsualLimit(advice.windows)), -kHeadroom);
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

// Returns parameters that follow from the windows: all scales are powers of two within what the
// policy accepts. The start is the scale of the verdict, or, where it needs none, the highest with
// head-room; the rest the stack's defaults, as long as nothing else loses less; then the start of
// the first step's window, other intervals, floors and ceilings. Tries sets of parameters, the
// preferred ones first, until one is as good as can be.
class Deriver {
 public:
  Deriver(const PolicyFamily& family, const FormatAdvice& advice)
      : family_(family),
        windows_(advice.windows),
        least_loss_(LeastLoss(windows_)),
        worth_(std::fmax(0.01, 1.5 / static_cast<double>(std::max<size_t>(1, windows_.size())))),
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
    choice.policy = family_.policy->name;
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
  // Less gradient lost is no reason to prefer other parameters: a step of a hundred, or one spike.
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
    const auto found = std::ranges::find(configured.parameters, name, &NamedValue::name);
    if (found == configured.parameters.end()) return 0.0;
    if (const auto* value = std::get_if<double>(&found->value)) return *value;
    const auto* integer = std::get_if<int64_t>(&found->value);
    return integer == nullptr ? 0 : static_cast<double>(*integer);  // "none" is a text
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
  if (!result.steps.empty()) score.final_scale = result.steps.back().next_scale;
  return score;
}

namespace {

// What becomes of the steps at scale 1, as the verdict counts them.
std::string WithoutScale(const FormatTuning& tuning) {
  size_t low = 0, high = 0;
  for (const StepWindow& step : tuning.windows) {
    if (step.hopeless) continue;
    high += step.highest_scale < 1;
    low += step.highest_scale >= 1 && step.low > 0;
  }
  std::string text;
  if (low > 0) {
    text += fmt::format("; without loss scaling {} {} too much", Counted(low, "step"),
                        low == 1 ? "loses" : "lose");
  }
  if (high > 0) {
    text += fmt::format("; without loss scaling {} {}", Counted(high, "step"),
                        high == 1 ? "overflows" : "overflow");
  }
  return text;
}

// What else would be safe at all steps.
std::string Remedies(std::span<const FormatTuning> all, const FormatTuning& tuning) {
  std::string formats;
  for (const FormatTuning& other : all) {
    const bool is_safe = other.hopeless_steps <= tuning.hopeless_steps &&
                         other.verdict != Verdict::kFailsInForward &&
                         !CommonScalesOf(other.windows).empty();
    if (is_safe) formats += (formats.empty() ? "" : " or ") + other.format;
  }
  return (formats.empty() ? ": use " : ": " + formats + " has one; or use ") +
         "parts in float32 where layers differ, a smaller learning rate or clipping where steps "
         "differ";
}

// Returns why the verdict is what it is.
std::string ReasonOf(const FormatTuning& tuning) {
  const size_t judged = tuning.steps - tuning.hopeless_steps;
  const std::string steps = Counted(judged, "step");
  const std::string is_safe =
      fmt::format("is safe at {} of {}", tuning.safest ? tuning.safest->steps : 0, steps);
  switch (tuning.verdict) {
    case Verdict::kAsIs:
      return "scale 1 " + is_safe +
             (tuning.choices.front().parameters.init > 1
                  ? "; a higher start also keeps the small channels of a tensor"
                  : "");
    case Verdict::kWithScale:
      return (tuning.scale ? "" : "no fixed scale is safe at all steps: ") +
             ScaleText(tuning.fixed_scale) + " " + is_safe +
             (tuning.scale ? WithoutScale(tuning) : "");
    case Verdict::kNoScaleIsSafe:
      return fmt::format("{} of {} {} too much at every scale that does not overflow",
                         tuning.empty_steps, steps, tuning.empty_steps == 1 ? "loses" : "lose");
    case Verdict::kOverflows:
      return fmt::format("only {} of {} {} finite as recorded", judged,
                         Counted(tuning.steps, "step"), judged == 1 ? "is" : "are");
    case Verdict::kFitsInForward:
      return "";  // without gradients nothing is tuned
    case Verdict::kFailsInForward:
      return ForwardFailure(tuning);
  }
  return "";
}

// Adds what makes the recommendation less sure. `all`: of all formats.
void NoteDoubts(std::span<const FormatTuning> all, FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  const auto note = [&](const std::string& text) { tuning.notes.push_back(text); };
  const int64_t interval = choice.parameters.interval;
  if (!choice.score.grew && interval >= static_cast<int64_t>(tuning.steps)) {
    note(fmt::format(
        "the growth interval of {} was never reached in {}: growth of the scale is untested",
        interval, Counted(tuning.steps, "recorded step")));
  }
  if (choice.score.events > 0) {
    note(fmt::format(
        "steps at which the original software would raise an error, since the scale is at its "
        "minimum: {}; this happens under every policy tried",
        choice.score.events));
  }
  if (tuning.hopeless_steps > 0) {
    note(fmt::format("steps that are not finite at any scale: {}", tuning.hopeless_steps));
  }
  if (tuning.empty_steps > 0) {
    note(fmt::format(
        "{} too much at every scale at which {} finite: a loss scale cannot help, but "
        "another format, parts in float32 or clipping can",
        Counted(tuning.empty_steps, "step") + (tuning.empty_steps == 1 ? " loses" : " lose"),
        tuning.empty_steps == 1 ? "it is" : "they are"));
  }
  if (CommonScalesOf(tuning.windows).empty()) {
    note("no loss scale is safe at all steps" + Remedies(all, tuning));
  }
  if (tuning.format == "cb16") {
    note("the Model Zoo accepts cbfloat16 only with dynamic loss scaling");
  } else if (tuning.format == "bf16") {
    note("the Model Zoo switches loss scaling off for bfloat16");
  }
}

// No scaling, the defaults of the stacks, and what is used today.
std::vector<CurrentPolicy> Compared(const std::optional<CurrentPolicy>& current) {
  std::vector<CurrentPolicy> compared = {
      {"no scaling", "static", {"loss_scale=1"}},
      {"Cerebras, as documented", "cerebras", {}},
      {"Cerebras 2.10", "cerebras-2.10", {}},
      {"torch", "torch", {}},
      {"DeepSpeed JSON", "deepspeed", {"init_scale=2^16", "delayed_shift=2"}},
      {"DeepSpeed class", "deepspeed", {}},
      {"Megatron-LM", "megatron", {}}};
  if (current) compared.push_back(*current);
  return compared;
}

// Differences of the gradient lost below this count as none: a step of ten thousand, or a hundredth
// of the harm from which on training suffers.
constexpr double kLossResolution = 1e-4;

// What follows from the replays of a format.
void Conclude(bool compares_current, FormatTuning& tuning) {
  // What to change in the parameters of the last policy compared, which is the current one.
  const PolicyChoice& chosen = tuning.choices.front();
  const ComparedPolicy& today = tuning.comparisons.back();
  if (compares_current && today.policy == chosen.policy) {
    for (const NamedValue& to : chosen.scaler->parameters) {
      const auto from = std::ranges::find(today.named, to.name, &NamedValue::name);
      if (from == today.named.end() || from->value == to.value) continue;
      tuning.changes.push_back({*from, to});
    }
  }
  for (PolicyChoice& choice : tuning.choices) {
    choice.optimal = choice.score.mean_loss <= tuning.least_loss + kLossResolution;
  }
}

// Replays recommendations and comparisons for all formats, in one pass over the steps, and fills in
// what they come to. What a profile does not tell is left out with the reason.
void ReplayEvidence(const StepSource& source, const ReplayOptions& options,
                    const TuneRequest& request, std::span<FormatTuning> tunings) {
  std::vector<ReplayRun> runs;
  std::vector<ComparedPolicy*> rows;  // of the runs
  for (FormatTuning& tuning : tunings) {
    const NamedFormat format = ParseFormat(tuning.format);
    const auto add = [&](const PolicyInfo& policy, ConfiguredScaler scaler, ComparedPolicy& row) {
      runs.push_back(MakeRun(format, policy, std::move(scaler), request.conversion));
      runs.back().tensor_records = TensorRecords::kDropped;
      rows.push_back(&row);
    };
    for (PolicyChoice& choice : tuning.choices) {
      choice.label =
          (&choice == &tuning.choices.front() ? "recommended " : "tuned ") + choice.policy;
      add(FindPolicy(choice.policy), *choice.scaler, choice);
      if (&choice == &tuning.choices.front()) runs.back().tensor_records = TensorRecords::kKept;
    }
    const auto scale = static_cast<float>(tuning.fixed_scale);
    tuning.fixed.label = "fixed scale " + ScaleText(tuning.fixed_scale);
    add(FindPolicy(tuning.choices.front().policy), {LossScaler::Make<StaticScale>({scale}), {}},
        tuning.fixed);
    const std::vector<CurrentPolicy> compared = Compared(request.current);
    tuning.comparisons.resize(compared.size());
    for (size_t i = 0; i < compared.size(); ++i) {
      const PolicyInfo& policy = FindPolicy(compared[i].policy);
      ComparedPolicy& row = tuning.comparisons[i];
      row.label = compared[i].label;
      row.policy = policy.name;
      try {
        ConfiguredScaler scaler =
            policy.make(ResolveParameters(policy, compared[i].settings), tuning.format);
        row.named = scaler.parameters;
        add(policy, std::move(scaler), row);
      } catch (const PolicyRefusal& refusal) {
        row.named = refusal.parameters;
        row.refusal = refusal.type + ": " + refusal.message;
      }
    }
  }
  std::vector<ReplayResult> results = Replay(source, runs, options);
  for (size_t i = 0; i < runs.size(); ++i) {
    rows[i]->refusal = results[i].unanswered.value_or("");
    if (!rows[i]->refusal.empty()) continue;
    rows[i]->score = ScoreOf(results[i], source.step_count, runs[i].conversion);
    rows[i]->tensors = std::move(results[i].tensors);
  }
  for (FormatTuning& tuning : tunings) Conclude(request.current.has_value(), tuning);
}

// The settings of the current policy, if it is this one.
std::span<const std::string> SettingsFor(const TuneRequest& request, std::string_view policy) {
  const bool current = request.current && FindPolicy(request.current->policy).name == policy;
  return current ? std::span<const std::string>(request.current->settings)
                 : std::span<const std::string>();
}

}  // namespace

CommonScales CommonScalesOf(std::span<const StepWindow> windows) {
  CommonScales scales = {.low = std::ldexp(1.0, kLowestWindowExponent),
                         .high = std::numeric_limits<double>::infinity()};
  for (const StepWindow& step : windows) {
    if (step.hopeless) continue;
    const double low = step.lowest_scale(), high = step.highest_scale;
    if (high < scales.high) scales.high = high, scales.high_step = &step;
    if (low > scales.low) scales.low = low, scales.low_step = &step;
  }
  return scales;
}

std::string_view ScalingAdvised(const FormatAdvice& advice) {
  switch (advice.verdict) {
    case Verdict::kAsIs:
      return "no scale needed";
    case Verdict::kWithScale:
      return advice.scale ? "static scale enough" : "dynamic scaling recommended";
    case Verdict::kNoScaleIsSafe:
    case Verdict::kOverflows:
    case Verdict::kFitsInForward:
    case Verdict::kFailsInForward:
      return "no scale helps";
  }
  return "";
}

TuneResult Tune(const StepSource& source, const TuneRequest& request, const Advice& advice,
                const ReplayOptions& options) {
  TuneResult result;
  result.compares_current = request.current.has_value();
  if (!advice.gradients) return result;
  for (const FormatAdvice& of_format : advice.formats) {
    FormatTuning& tuning = result.formats.emplace_back();
    static_cast<FormatAdvice&>(tuning) = of_format;
    std::vector<std::string> policies = {std::string(TunedPolicy(request, of_format.format))};
    if (of_format.format == "fp16")
      std::ranges::copy(request.fp16_policies, std::back_inserter(policies));
    for (const std::string& policy : policies) {
      if (!tuning.choices.empty() && policy == policies.front()) continue;
      const PolicyFamily family = FamilyOf(policy, of_format.format, SettingsFor(request, policy));
      tuning.choices.push_back(Deriver(family, of_format).Run());
    }
    tuning.fixed_scale = FixedScale(of_format);
    tuning.least_loss = LeastLoss(of_format.windows);
  }
  ReplayEvidence(source, options, request, result.formats);
  for (FormatTuning& tuning : result.formats) {
    tuning.reason = ReasonOf(tuning);
    NoteDoubts(result.formats, tuning);
  }
  return result;
}

}  // namespace dlsim::sim
