// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/run_state.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "sim/policies/resume.h"
#include "sim/replay/clip_step.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

template <class Losses>
HarmOverSteps OverTensors(const Losses& losses) {
  HarmOverSteps over;
  for (const auto& tensor : losses) {
    if (tensor.noise() || tensor.harm.steps == 0) continue;
    const double worst = std::max(over.worst, tensor.harm.worst);
    over.Add(tensor.harm.mean());
    over.worst = worst;
  }
  return over;
}

const GradientDetail& DetailOf(const TensorAnswer& answer, Reading reading) {
  if (reading == Reading::kLikely || !answer.bounds) return answer.detail;
  return (reading == Reading::kSmallest ? answer.bounds->low : answer.bounds->high).detail;
}

}  // namespace

RunState::RunState(ReplayRun run, size_t conversion, const ReplayOptions& options)
    : run_(std::move(run)), conversion_(conversion), options_(options), initial_(run_.scaler) {}

bool RunState::Checks(const StepTensor& tensor) const {
  return tensor.role == Role::kGrad || options_.checked == Checked::kAllGradients;
}

RunState::IndexLists RunState::CheckedBy(const std::vector<size_t>& parts, size_t count,
                                         const std::vector<StepTensor>& tensors) const {
  IndexLists lists(count);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (parts[t] < count && Checks(tensors[t])) lists[parts[t]].push_back(t);
  }
  return lists;
}

size_t RunState::UnitOf(const std::string& tensor) {
  const bool layers = run_.rules.granularity == ScaleGranularity::kLayer;
  const auto [entry, added] =
      unit_index_.try_emplace(layers ? LayerOf(tensor) : tensor, units_.size());
  if (added) units_.push_back(initial_);
  return entry->second;
}

ReplayResult RunState::TakeResult() {
  result_.summary.tensor_harm = losses_ ? OverTensors(*losses_) : OverTensors(result_.tensors);
  losses_.reset();
  return std::move(result_);
}

ReplayStep RunState::TakeStep() {
  ReplayStep last = std::move(result_.steps.back());
  result_.steps.pop_back();
  result_.events.clear();
  return last;
}

std::optional<DetailQuestion> RunState::Detail() const {
  DetailQuestion question;
  question.sums = NeedsDetail(run_.rules.finite_test, run_.conversion.format);
  const std::optional<double> edge = run_.scaler.histogram_edge();
  if (edge) question.edge = static_cast<float>(*edge);
  const Clipping& clipping = run_.clipping;
  if (clipping.max_value) {
    question.limit = static_cast<float>(*clipping.max_value);
    question.limit_domain = clipping.domain;
  }
  const bool needed = edge || clipping.max_value || run_.scaler.uses_absmax() || question.sums;
  return needed ? std::optional(question) : std::nullopt;
}

StepQuestion RunState::Prepare(int64_t step, const std::vector<StepTensor>& tensors,
                               const std::vector<GradientSpread>& spreads) {
  if (run_.resume && !resumed_ && step >= run_.resume->at_step) {
    if (run_.initial) initial_ = *run_.initial;
    ResumeFrom(run_.resume->kept, initial_, run_.scaler);
    for (LossScaler& unit : units_) ResumeFrom(run_.resume->kept, initial_, unit);
    resumed_ = true;
  }
  StepQuestion question = {run_.conversion, 1.0f, {}, Detail(), run_.asked};
  if (run_.rules.granularity == ScaleGranularity::kModel) {
    question.scale = static_cast<float>(run_.scaler.scale());
    return question;
  }
  unit_of_tensor_.clear();
  for (size_t t = 0; t < tensors.size(); ++t) {
    unit_of_tensor_.push_back(UnitOf(tensors[t].name));
    LossScaler& scaler = units_[unit_of_tensor_.back()];
    if (scaler.looks_ahead()) scaler.Prepare(spreads[t]);
    question.tensor_scales.push_back(static_cast<float>(scaler.scale()));
  }
  scale_of_tensor_ = question.tensor_scales;
  return question;
}

double RunState::SmallestScale() const {
  if (unit_of_tensor_.empty()) return run_.scaler.scale();
  double smallest = units_[unit_of_tensor_.front()].scale();
  for (const size_t unit : unit_of_tensor_) smallest = std::fmin(smallest, units_[unit].scale());
  return smallest;
}

std::vector<size_t> RunState::GroupsOf(const std::vector<StepTensor>& tensors) const {
  std::vector<size_t> groups(tensors.size(), 0);
  const std::vector<OptimizerGroup>& optimizers = options_.optimizers;
  for (size_t t = 0; t < tensors.size() && !optimizers.empty(); ++t) {
    const auto takes = [&](const OptimizerGroup& group) {
      return fnmatch(group.tensors.c_str(), tensors[t].name.c_str(), 0) == 0;
    };
    const auto found = std::find_if(optimizers.begin(), optimizers.end(), takes);
    if (found == optimizers.end() && tensors[t].role == Role::kGrad) {
      throw UsageError("--optimizer",
                       "no optimizer matches the gradient " + Quoted(tensors[t].name));
    }
    groups[t] = static_cast<size_t>(found - optimizers.begin());
  }
  return groups;
}

void RunState::JudgeAll(const Measured& step, ReplayStep& record) const {
  const FiniteTest test = run_.rules.finite_test;
  const std::vector<StepTensor>& tensors = step.judged.step.tensors;
  const std::vector<size_t> one_part(tensors.size(), 0);
  const std::vector<size_t> checked = CheckedBy(one_part, 1, tensors).front();
  const FiniteFindings whole = Judge(step.judged, checked);
  record.finite = IsFinite(test, whole);
  if (record.uncertain) record.uncertain->certain = IsCertain(test, step.judged, checked);
  record.optimizers.resize(options_.optimizers.size());
  for (size_t t = 0; t < tensors.size() && !record.optimizers.empty(); ++t) {
    if (tensors[t].role == Role::kGrad) record.optimizers[step.groups[t]].has_gradients = true;
  }
  const IndexLists of_groups = CheckedBy(step.groups, record.optimizers.size(), tensors);
  for (size_t g = 0; g < of_groups.size(); ++g) {
    record.optimizers[g].finite = IsFinite(test, Judge(step.judged, of_groups[g]));
    if (record.uncertain) record.uncertain->certain &= IsCertain(test, step.judged, of_groups[g]);
  }
  Explain(test, whole, record);
}

ScalerInput RunState::InputOf(const Measured& step, const ReplayStep& record,
                              Reading reading) const {
  ScalerInput input = {.overflow = !record.finite};
  for (size_t t = 0; t < step.judged.answers.size(); ++t) {
    if (!Checks(step.judged.step.tensors[t])) continue;
    const GradientDetail& detail = DetailOf(step.judged.answers[t], reading);
    input.absmax = std::fmax(input.absmax, detail.absmax);
    input.below_edge += detail.below_edge;
    input.above_edge += detail.above_edge;
  }
  return input;
}

// True if the policy goes on alike whatever a profile leaves open of the magnitudes.
bool RunState::DecidesAlike(const Measured& step, const ReplayStep& record) const {
  if (!run_.scaler.uses_absmax() && !run_.scaler.histogram_edge()) return true;
  const ScalerInput small = InputOf(step, record, Reading::kSmallest);
  const ScalerInput large = InputOf(step, record, Reading::kLargest);
  if (small.absmax == large.absmax && small.below_edge == large.below_edge &&
      small.above_edge == large.above_edge) {
    return true;
  }
  LossScaler with_small = run_.scaler, with_large = run_.scaler;
  return with_small.Next(small).skip == with_large.Next(large).skip &&
         with_small.scale() == with_large.scale();
}

ScalerDecision RunState::Next(const Measured& step, ReplayStep& record) {
  if (run_.rules.granularity == ScaleGranularity::kModel) {
    if (record.uncertain) record.uncertain->certain &= DecidesAlike(step, record);
    return run_.scaler.Next(InputOf(step, record, Reading::kLikely));
  }
  // A layer or gradient learns of its own overflow; the step is skipped if any asks for it.
  ScalerDecision decision;
  const IndexLists of_units = CheckedBy(unit_of_tensor_, units_.size(), step.judged.step.tensors);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const bool finite = IsFinite(run_.rules.finite_test, Judge(step.judged, of_units[unit]));
    if (record.uncertain) {
      record.uncertain->certain &= IsCertain(run_.rules.finite_test, step.judged, of_units[unit]);
    }
    ScalerDecision of_unit = units_[unit].Next({.overflow = !finite});
    decision.skip |= of_unit.skip;
    if (of_unit.event && !decision.event) decision.event = std::move(of_unit.event);
  }
  return decision;
}

void RunState::Skip(const ScalerDecision& decision, ReplayStep& record) const {
  record.skipped = decision.skip;
  const bool own = run_.rules.optimizer_skip == OptimizerSkip::kOwn;
  for (OptimizerStep& optimizer : record.optimizers) {
    if (!optimizer.has_gradients) continue;
    optimizer.skipped = decision.skip && !(own && optimizer.finite);
    if (!optimizer.skipped) record.skipped = false;
  }
}

// Sums up what the tensors of one role lose.
StepHarm RunState::HarmOfStep(const Measured& step, Role role) const {
  const auto over = [&](Reading reading) {
    return HarmOver(role, step.judged.step.tensors, step.judged.answers, step.judged.totals,
                    step.shared.noise, reading);
  };
  const HarmOverTensors likely = over(Reading::kLikely);
  StepHarm harm = {likely.mean, likely.worst, {}, {}};
  if (likely.tensors == 0) return harm;
  harm.worst_tensor = step.judged.step.tensors[likely.worst_tensor].name;
  if (step.judged.answers.front().bounds) {
    harm.mean_range = Bracket<double>{over(Reading::kSmallest).mean, over(Reading::kLargest).mean};
  }
  return harm;
}

// Adds a step's counters to its record and to the tensors of the run.
void RunState::Count(const Measured& step, ReplayStep& record) {
  const std::vector<TensorAnswer>& answers = step.judged.answers;
  for (size_t t = 0; t < answers.size(); ++t) CountStep(step, t, record);
  const bool harm_only = run_.tensor_records == TensorRecords::kHarm;
  const bool kept = !harm_only && run_.tensor_records != TensorRecords::kDropped;
  for (size_t t = 0; kept && t < answers.size(); ++t) CountTensor(step, t, record);
  if (harm_only) CountLosses(step, record);
  record.harm = HarmOfStep(step, Role::kGrad);
  record.activation_harm = HarmOfStep(step, Role::kActGrad);
  const auto norm = [&](size_t group, const auto& squares_of) {
    double squares = 0;
    for (size_t t = 0; t < answers.size(); ++t) {
      const bool taken = group == record.optimizers.size() || step.groups[t] == group;
      if (taken && step.judged.step.tensors[t].role == Role::kGrad)
        squares += squares_of(answers[t]);
    }
    return std::sqrt(squares);
  };
  const auto set = [&](size_t group, auto& into) {
    into.grad_norm = norm(group, [](const TensorAnswer& a) { return a.effective_sum_of_squares; });
    if (!record.uncertain) return;
    if (!into.uncertain) into.uncertain.emplace();
    into.uncertain->grad_norm = {
        norm(group, [](const TensorAnswer& a) { return a.bounds->low.effective_sum_of_squares; }),
        norm(group, [](const TensorAnswer& a) { return a.bounds->high.effective_sum_of_squares; })};
  };
  set(record.optimizers.size(), record);
  for (size_t g = 0; g < record.optimizers.size(); ++g) set(g, record.optimizers[g]);
}

void RunState::Advance(const JudgedStep& step, const SharedStep& shared, int64_t number) {
  const std::vector<TensorAnswer>& answers = step.answers;
  const Measured measured = {step, GroupsOf(step.step.tensors), shared};
  ReplayStep record;
  record.step = number;
  record.scale = SmallestScale();
  if (!answers.empty() && answers.front().bounds) record.uncertain.emplace();
  JudgeAll(measured, record);
  ScalerDecision decision = Next(measured, record);
  Skip(decision, record);
  record.next_scale = SmallestScale();
  Count(measured, record);
  ClipStep(run_, measured.judged, measured.groups, record);
  result_.summary.Add(record);
  result_.steps.push_back(std::move(record));
  if (!decision.event) return;
  decision.event->step = number;
  if (decision.event->fatal && options_.on_fatal == OnFatal::kStop) result_.stopped_at = number;
  result_.events.push_back(std::move(*decision.event));
}

}  // namespace dlsim::sim
