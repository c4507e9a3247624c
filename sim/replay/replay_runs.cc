// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay_runs.h"

#include <fnmatch.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <limits>
#include <utility>

#include "dlsim/error.h"
#include "sim/policies/policy.h"
#include "sim/replay/finite_test.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

std::optional<DetailQuestion> DetailOf(const ReplayRun& run) {
  DetailQuestion question;
  question.sums = NeedsDetail(run.rules.finite_test, run.conversion.format);
  const std::optional<double> edge = run.scaler.histogram_edge();
  if (edge) question.edge = static_cast<float>(*edge);
  const Clipping& clipping = run.clipping;
  if (clipping.max_value) {
    question.limit = static_cast<float>(*clipping.max_value);
    question.limit_domain = clipping.domain;
  }
  question.absmax = run.scaler.uses_absmax();
  const bool needed = edge || clipping.max_value || question.absmax || question.sums;
  return needed ? std::optional(question) : std::nullopt;
}

}  // namespace

// What TensorRecords::kHarm keeps of a tensor; see ReplayTensor.
struct TensorLoss {
  HarmOverSteps harm = {};
  uint32_t nonzero_steps = 0, noise_steps = 0;

  bool noise() const { return 2 * uint64_t{noise_steps} > nonzero_steps; }
};

// By place of the tensor; null before the first step. Runs that went the same way share it.
using LossList = std::shared_ptr<std::vector<TensorLoss>>;

// The losses after one step, of the runs that took it so far.
class SharedLosses {
 public:
  // What decides what a step adds.
  struct Way {
    const StepAnswer* answer;
    std::vector<bool> skipped;  // as a whole, and by optimizer

    auto operator<=>(const Way&) const = default;
  };

  // Adds a step to the losses of a run by add(losses), unless a run with the same losses went the
  // same way.
  template <class Add>
  void Advance(const Way& way, const Add& add, LossList& losses) {
    LossList& after = after_[{losses.get(), way}];
    if (after == nullptr) {
      const bool own = losses.use_count() == 1;
      after = own                 ? std::move(losses)
              : losses == nullptr ? std::make_shared<std::vector<TensorLoss>>()
                                  : std::make_shared<std::vector<TensorLoss>>(*losses);
      add(*after);
    }
    losses = after;
  }

 private:
  std::map<std::pair<const void*, Way>, LossList> after_;  // by the losses before, and the way
};

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

// Returns the smaller; NaN if one is.
float SmallerCoefficient(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::fmin(a, b);
}

StepHarm HarmOfStep(const Step& step, const StepAnswer& answer, std::span<const size_t> counted) {
  const HarmOverTensors over = HarmOver(counted, answer);
  StepHarm harm = {over.mean, over.worst, {}};
  if (over.tensors > 0) harm.worst_tensor = step.gradients()[over.worst_tensor].name;
  return harm;
}

}  // namespace

StepQuestion QuestionOf(const ReplayRun& run, float scale) {
  return {.conversion = run.conversion,
          .scale = scale,
          .detail = DetailOf(run),
          .converted_norm = run.clipping.max_norm.has_value(),
          .norm_decides = run.rules.finite_test == FiniteTest::kGlobalNorm};
}

std::optional<std::string> WhyNotFromTables(const ReplayRun& run, const ProfileSettings& profile) {
  if (run.scaler.looks_ahead()) return "the policy looks at the spread of each gradient";
  if (run.scaler.histogram_edge()) return "the policy counts scaled gradients by magnitude";
  if (run.clipping.enabled()) return "clipping looks at the converted gradients";
  const auto scale = static_cast<float>(run.scaler.scale());
  const std::optional<NotInTable> outside = OutsideTables(run.conversion, scale);
  if (!outside) return std::nullopt;
  const float mantissa = MantissaOf(scale);
  if (*outside != NotInTable::kScale || mantissa == 1) return WhyNot(*outside);
  const bool kept = std::ranges::find(profile.mantissas, mantissa) != profile.mantissas.end();
  if (kept && !OutsideTables(run.conversion, 1)) return std::nullopt;
  return fmt::format("{} (a profile made with --scale {:g} tells it)", WhyNot(*outside), scale);
}

StepOptions OptionsFor(std::span<const ReplayRun> runs, StepOptions options) {
  for (const ReplayRun& run : runs) {
    const auto scale = static_cast<float>(run.scaler.scale());
    const float mantissa = MantissaOf(scale);
    if (mantissa != 1 && OutsideTables(run.conversion, scale) == NotInTable::kScale &&
        run.rules.granularity == ScaleGranularity::kModel &&
        std::ranges::find(options.mantissas, mantissa) == options.mantissas.end()) {
      options.mantissas.push_back(mantissa);
    }
  }
  return options;
}

std::vector<size_t> CheckedIn(const Step& step, Checked checked) {
  std::vector<size_t> gradients;
  for (size_t t = 0; t < step.gradients().size(); ++t) {
    const bool of_parameter = step.gradients()[t].role == Role::kGrad;
    if (of_parameter || checked == Checked::kAllGradients) gradients.push_back(t);
  }
  return gradients;
}

ScalerInput InputOf(const StepAnswer& answer, std::span<const size_t> checked) {
  ScalerInput input;
  for (const size_t t : checked) {
    input.absmax = std::fmax(input.absmax, answer[t].rest().detail.absmax);
    input.below_edge += answer[t].rest().detail.below_edge;
    input.above_edge += answer[t].rest().detail.above_edge;
  }
  return input;
}

// What all runs that had the same answer have in common at a step.
struct OfAnswer {
  FiniteFindings findings;  // of the gradients that are checked; and what they tell the scaler
  ScalerInput input;
  TensorStats gradients, activations;  // over the gradients of a role
  StepHarm harm, activation_harm;
};

// What the runs share of a step.
struct ReplayRuns::Shared {
  const Step& step;
  std::vector<bool> noise;         // per gradient, and ...
  std::span<const size_t> places;  // ... its place in the result; see NoiseFinder
  std::vector<size_t> checked;     // gradients that decide whether the step is finite
  CountedGradients counted;
  std::optional<double> grad_norm = {};
  std::map<const StepAnswer*, OfAnswer> answers = {};
  SharedLosses losses = {};

  const OfAnswer& Of(const StepAnswer& answer) {
    const auto [found, added] = answers.try_emplace(&answer);
    OfAnswer& of = found->second;
    if (!added) return of;
    const TensorSpan tensors = step.gradients();
    of.findings = Judge(tensors, answer, checked);
    of.input = InputOf(answer, checked);
    for (size_t t = 0; t < tensors.size(); ++t) {
      (tensors[t].role == Role::kGrad ? of.gradients : of.activations).Merge(answer[t].total);
    }
    of.harm = HarmOfStep(step, answer, counted.grads.all);
    of.activation_harm = HarmOfStep(step, answer, counted.act_grads.all);
    return of;
  }
};

class ReplayRuns::Run {
 public:
  Run(ReplayRun run, const ReplayOptions& options)
      : run_(std::move(run)), options_(options), initial_(run_.scaler) {}

  const ReplayRun& run() const { return run_; }
  ReplayResult& result() { return result_; }
  bool stopped() const { return result_.stopped_at.has_value(); }
  const std::shared_ptr<const StepAnswer>& answer() const { return answer_; }
  const std::shared_ptr<const StepAnswer>& forward() const { return forward_; }

  // Begins a step, and returns what to ask: resumes if training was interrupted here, and sets
  // factors that depend on the gradients.
  const StepQuestion& Prepare(const Shared& shared);

  // Takes the step for which it is prepared; its answers are kept until they are forgotten.
  void Take(Shared& shared);
  void Forget() { answer_ = forward_ = nullptr; }
  void EndUnanswered(int64_t step, const std::string& why) {
    result_.stopped_at = step;
    result_.unanswered = why;
    result_.events.push_back({step, "NotInProfile", why, true, {}});
  }
  ReplayResult TakeResult();

 private:
  using IndexLists = std::vector<std::vector<size_t>>;

  bool by_unit() const { return run_.rules.granularity != ScaleGranularity::kModel; }

  double SmallestScale() const;
  std::vector<size_t> GroupsOf(TensorSpan tensors) const;
  static IndexLists CheckedBy(std::span<const size_t> parts, size_t count,
                              std::span<const size_t> checked);
  void JudgeAll(Shared& shared, ReplayStep& record) const;
  ScalerDecision Next(Shared& shared, const ReplayStep& record);
  void Skip(const ScalerDecision& decision, ReplayStep& record) const;
  void Count(Shared& shared, ReplayStep& record);
  bool SkipsTensor(const Step& step, size_t t, const ReplayStep& record) const;
  void CountLosses(Shared& shared, const ReplayStep& record);
  void CountTensor(const Shared& shared, size_t t, const ReplayStep& record);
  void CountForward(const Step& step);
  void Clip(const Step& step, ReplayStep& record) const;
  void ClipByNorm(ReplayStep& record) const;
  void ClipByValue(const Step& step, ReplayStep& record) const;

  ReplayRun run_;
  const ReplayOptions& options_;
  LossScaler initial_;  // of new layers and gradients
  bool resumed_ = false;
  ReplayResult result_;
  NamedList<ReplayTensor> forward_tensors_;
  LossList losses_;  // with TensorRecords::kHarm
  // The scalers of layers or gradients, if the rules say so; else empty.
  std::vector<LossScaler> units_;
  std::map<std::string, size_t> unit_index_;
  std::vector<size_t> unit_of_place_;  // of tensors; see Shared::places
  StepQuestion question_;
  // Of the current step: by gradient its unit, and its optimizer if there are several.
  std::vector<size_t> unit_of_tensor_;
  std::vector<size_t> groups_;
  std::shared_ptr<const StepAnswer> answer_, forward_;
};

const StepQuestion& ReplayRuns::Run::Prepare(const Shared& shared) {
  const Step& step = shared.step;
  if (run_.resume && !resumed_ && step.number() >= run_.resume->at_step) {
    if (run_.initial) initial_ = *run_.initial;
    ResumeFrom(run_.resume->kept, initial_, run_.scaler);
    for (LossScaler& unit : units_) ResumeFrom(run_.resume->kept, initial_, unit);
    resumed_ = true;
  }
  if (!by_unit()) {
    return question_ = QuestionOf(run_, static_cast<float>(run_.scaler.scale()));
  }
  const bool layers = run_.rules.granularity == ScaleGranularity::kLayer;
  std::shared_ptr<const std::vector<GradientSpread>> spreads;
  if (run_.scaler.looks_ahead()) spreads = step.Spreads();
  question_ = QuestionOf(run_, 1);
  unit_of_tensor_.clear();
  for (size_t t = 0; t < step.gradients().size(); ++t) {
    // A run sees each step until it stops, so that only the next place can be new to it.
    if (shared.places[t] == unit_of_place_.size()) {
      const std::string& name = step.gradients()[t].name;
      const auto [entry, added] =
          unit_index_.try_emplace(layers ? std::string(LayerOf(name)) : name, units_.size());
      if (added) units_.push_back(initial_);
      unit_of_place_.push_back(entry->second);
    }
    unit_of_tensor_.push_back(unit_of_place_[shared.places[t]]);
    LossScaler& scaler = units_[unit_of_tensor_.back()];
    if (scaler.looks_ahead()) scaler.Prepare((*spreads)[t]);
    question_.tensor_scales.push_back(static_cast<float>(scaler.scale()));
  }
  return question_;
}

double ReplayRuns::Run::SmallestScale() const {
  if (unit_of_tensor_.empty()) return run_.scaler.scale();
  double smallest = units_[unit_of_tensor_.front()].scale();
  for (const size_t unit : unit_of_tensor_) smallest = std::fmin(smallest, units_[unit].scale());
  return smallest;
}

std::vector<size_t> ReplayRuns::Run::GroupsOf(TensorSpan tensors) const {
  std::vector<size_t> groups;
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
    groups.push_back(static_cast<size_t>(found - optimizers.begin()));
  }
  return groups;
}

// Returns the checked tensors of each of `count` parts; parts[t] is that of a tensor, if below.
ReplayRuns::Run::IndexLists ReplayRuns::Run::CheckedBy(std::span<const size_t> parts, size_t count,
                                                       std::span<const size_t> checked) {
  IndexLists lists(count);
  for (const size_t t : checked) {
    if (parts[t] < count) lists[parts[t]].push_back(t);
  }
  return lists;
}

void ReplayRuns::Run::JudgeAll(Shared& shared, ReplayStep& record) const {
  const FiniteTest test = run_.rules.finite_test;
  const TensorSpan tensors = shared.step.gradients();
  const FiniteFindings& whole = shared.Of(*answer_).findings;
  record.finite = IsFinite(test, whole);
  Explain(test, whole, record);
  if (options_.optimizers.empty()) return;
  record.optimizers.resize(options_.optimizers.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role == Role::kGrad) record.optimizers[groups_[t]].has_gradients = true;
  }
  const IndexLists of_groups = CheckedBy(groups_, record.optimizers.size(), shared.checked);
  for (size_t g = 0; g < record.optimizers.size(); ++g) {
    record.optimizers[g].finite = IsFinite(test, Judge(tensors, *answer_, of_groups[g]));
  }
}

ScalerDecision ReplayRuns::Run::Next(Shared& shared, const ReplayStep& record) {
  if (!by_unit()) {
    ScalerInput input = shared.Of(*answer_).input;
    input.overflow = !record.finite;
    return run_.scaler.Next(input);
  }
  // A layer or gradient learns of its own overflow; the step is skipped if any asks for it.
  ScalerDecision decision;
  const IndexLists of_units = CheckedBy(unit_of_tensor_, units_.size(), shared.checked);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const bool finite =
        IsFinite(run_.rules.finite_test, Judge(shared.step.gradients(), *answer_, of_units[unit]));
    ScalerDecision of_unit = units_[unit].Next({.overflow = !finite});
    decision.skip |= of_unit.skip;
    if (of_unit.event && !decision.event) decision.event = std::move(of_unit.event);
  }
  return decision;
}

void ReplayRuns::Run::Skip(const ScalerDecision& decision, ReplayStep& record) const {
  record.skipped = decision.skip;
  const bool own = run_.rules.optimizer_skip == OptimizerSkip::kOwn;
  for (OptimizerStep& optimizer : record.optimizers) {
    if (!optimizer.has_gradients) continue;
    optimizer.skipped = decision.skip && !(own && optimizer.finite);
    if (!optimizer.skipped) record.skipped = false;
  }
}

bool ReplayRuns::Run::SkipsTensor(const Step& step, size_t t, const ReplayStep& record) const {
  const bool grouped = step.gradients()[t].role == Role::kGrad && !record.optimizers.empty();
  return grouped ? record.optimizers[groups_[t]].skipped : record.skipped;
}

// Adds a step's counters to its record and to the tensors of the run.
void ReplayRuns::Run::Count(Shared& shared, ReplayStep& record) {
  const Step& step = shared.step;
  const OfAnswer& of = shared.Of(*answer_);
  record.gradients = of.gradients;
  record.activations = of.activations;
  record.harm = of.harm;
  record.activation_harm = of.activation_harm;
  const bool kept = run_.tensor_records == TensorRecords::kKept;
  for (size_t t = 0; kept && t < answer_->size(); ++t) CountTensor(shared, t, record);
  if (run_.tensor_records == TensorRecords::kHarm) CountLosses(shared, record);
  const auto set_norms = [&](size_t group, auto& into) {
    std::optional<double> squares = 0, converted;
    if (run_.clipping.max_norm) converted = 0;
    const auto add = [](std::optional<double> square, std::optional<double>& sum) {
      sum = sum && square ? std::optional(*sum + *square) : std::nullopt;
    };
    for (size_t t = 0; t < answer_->size(); ++t) {
      const bool taken = group == record.optimizers.size() || groups_[t] == group;
      if (!taken || step.gradients()[t].role != Role::kGrad) continue;
      add(step.tables().SquaredNorm(t), squares);
      add((*answer_)[t].rest().converted_squares, converted);
    }
    if (squares) into.grad_norm = std::sqrt(*squares);
    if (converted) into.converted_norm = std::sqrt(*converted);
  };
  record.grad_norm = shared.grad_norm;
  if (run_.clipping.max_norm) set_norms(record.optimizers.size(), record);
  for (size_t g = 0; g < record.optimizers.size(); ++g) set_norms(g, record.optimizers[g]);
}

// Adds what tensors lose to that of the run.
void ReplayRuns::Run::CountLosses(Shared& shared, const ReplayStep& record) {
  SharedLosses::Way way = {answer_.get(), {record.skipped}};
  for (const OptimizerStep& optimizer : record.optimizers) way.skipped.push_back(optimizer.skipped);
  const auto add = [&](std::vector<TensorLoss>& losses) {
    if (losses.empty()) losses.reserve(answer_->size());
    for (size_t t = 0; t < answer_->size(); ++t) {
      const size_t place = shared.places[t];
      if (place >= losses.size()) losses.resize(place + 1);
      const TensorStats& total = (*answer_)[t].total;
      if (!(total.sum_of_squares > 0)) continue;
      ++losses[place].nonzero_steps;
      losses[place].noise_steps += shared.noise[t];
      if (!SkipsTensor(shared.step, t, record)) losses[place].harm.Add(total.harm());
    }
  };
  shared.losses.Advance(way, add, losses_);
}

// Adds all to the tensor of the run.
void ReplayRuns::Run::CountTensor(const Shared& shared, size_t t, const ReplayStep& record) {
  const TensorStats& total = (*answer_)[t].total;
  const bool skipped = SkipsTensor(shared.step, t, record);
  const TensorInfo& header = shared.step.gradients()[t];
  const size_t place = shared.places[t];
  // A run sees each step until it stops, so that only the next place can be new to it.
  if (place == result_.tensors.size()) result_.tensors.push_back({header.name, header.role});
  ReplayTensor& tensor = result_.tensors[place];
  tensor.stats.Merge(total);
  const double scale = by_unit() ? question_.tensor_scales[t] : record.scale;
  if (!skipped) {
    tensor.worst_step_energy_lost = std::max(tensor.worst_step_energy_lost, total.energy_lost());
  }
  if (total.sum_of_squares > 0) {
    ++tensor.nonzero_steps;
    tensor.noise_steps += shared.noise[t];
    if (!skipped) tensor.harm.Add(total.harm());
    AddChannels(shared.step.tables(), t,
                skipped ? std::nullopt : SmallestQuantum(run_.conversion, scale),
                AboveFloor(total.harm(), run_.conversion), tensor.channels);
  }
  if (total.overflow > 0 && !tensor.first_overflow_step) tensor.first_overflow_step = record.step;
  if (!by_unit()) return;
  if (!tensor.scales) tensor.scales = ScaleRange{scale, scale, scale};
  tensor.scales =
      ScaleRange{std::fmin(tensor.scales->min, scale), std::fmax(tensor.scales->max, scale), scale};
}

void ReplayRuns::Run::CountForward(const Step& step) {
  for (size_t t = 0; t < forward_->size(); ++t) {
    const TensorInfo& header = step.forward()[t];
    const TensorStats& total = (*forward_)[t].total;
    ForwardPass& pass = result_.forward;
    (header.role == Role::kAct ? pass.outputs : pass.values).Merge(total);
    ReplayTensor& tensor = forward_tensors_.Of(header.name, t, header.role);
    tensor.stats.Merge(total);
    tensor.worst_step_energy_lost = std::max(tensor.worst_step_energy_lost, total.energy_lost());
    if (total.overflow > 0 && !tensor.first_overflow_step) {
      tensor.first_overflow_step = step.number();
    }
  }
}

void ReplayRuns::Run::Clip(const Step& step, ReplayStep& record) const {
  if (record.skipped) return;
  if (run_.clipping.max_norm) ClipByNorm(record);
  if (run_.clipping.max_value) ClipByValue(step, record);
}

void ReplayRuns::Run::ClipByNorm(ReplayStep& record) const {
  const Clipping& clipping = run_.clipping;
  const double factor = clipping.domain == ClipDomain::kScaled ? record.scale : 1.0;
  const float max_norm = static_cast<float>(*clipping.max_norm);
  const auto clip = [&](auto& step) {
    const float norm = static_cast<float>(step.converted_norm.value_or(0) * factor);
    step.clip_coefficient = ClipCoefficient(clipping.rule, max_norm, norm);
    record.clipped |= Clips(clipping.rule, max_norm, norm);
  };
  // Optimizers that skip on their own are clipped on their own.
  if (run_.rules.optimizer_skip != OptimizerSkip::kOwn || record.optimizers.empty()) {
    return clip(record);
  }
  for (OptimizerStep& optimizer : record.optimizers) {
    if (optimizer.skipped || !optimizer.has_gradients) continue;
    clip(optimizer);
    record.clip_coefficient =
        SmallerCoefficient(record.clip_coefficient.value_or(1.0f), *optimizer.clip_coefficient);
  }
}

void ReplayRuns::Run::ClipByValue(const Step& step, ReplayStep& record) const {
  uint64_t clipped = 0;
  for (size_t t = 0; t < answer_->size(); ++t) {
    if (step.gradients()[t].role != Role::kGrad) continue;
    if (!record.optimizers.empty() && record.optimizers[groups_[t]].skipped) continue;
    clipped += (*answer_)[t].rest().detail.above_limit;
    record.clippable_elements += (*answer_)[t].rest().detail.elements;
  }
  record.clipped_elements = clipped;
  record.clipped = clipped > 0;
}

void ReplayRuns::Run::Take(Shared& shared) {
  const Step& step = shared.step;
  answer_ = step.Ask(question_);
  groups_ = GroupsOf(step.gradients());
  forward_ = nullptr;
  if (run_.tensor_records == TensorRecords::kKept && !step.forward().empty()) {
    forward_ = step.AskForward(run_.conversion);
    CountForward(step);
  }
  ReplayStep record;
  record.step = step.number();
  record.scale = SmallestScale();
  JudgeAll(shared, record);
  ScalerDecision decision = Next(shared, record);
  Skip(decision, record);
  record.next_scale = SmallestScale();
  Count(shared, record);
  Clip(step, record);
  result_.summary.Add(record);
  result_.steps.push_back(std::move(record));
  if (!decision.event) return;
  decision.event->step = step.number();
  if (decision.event->fatal && options_.on_fatal == OnFatal::kStop) {
    result_.stopped_at = step.number();
  }
  result_.events.push_back(std::move(*decision.event));
}

ReplayResult ReplayRuns::Run::TakeResult() {
  result_.summary.tensor_harm = losses_ ? OverTensors(*losses_) : OverTensors(result_.tensors);
  losses_.reset();
  result_.forward.tensors = forward_tensors_.Take();
  return std::move(result_);
}

ReplayRuns::ReplayRuns(std::vector<ReplayRun> runs, const ReplayOptions& options)
    : options_(options) {
  for (ReplayRun& run : runs) runs_.push_back(std::make_unique<Run>(std::move(run), options));
}

ReplayRuns::~ReplayRuns() = default;

const ReplayRun& ReplayRuns::run(size_t r) const { return runs_[r]->run(); }
const ReplayResult& ReplayRuns::result(size_t r) const { return runs_[r]->result(); }

bool ReplayRuns::AllStopped() const {
  return std::ranges::all_of(runs_, [](const auto& run) { return run->stopped(); });
}

void ReplayRuns::Take(size_t i, const Step& step) {
  if (AllStopped()) return;
  std::vector<bool> noise = noise_.Find(step, step.Inputs());
  CountedGradients counted(step, noise);
  Shared shared = {step, std::move(noise), noise_.places(), CheckedIn(step, options_.checked),
                   std::move(counted)};
  std::optional<double> squares = 0;
  for (const size_t t : CheckedIn(step, Checked::kParameterGradients)) {
    const std::optional<double> square = step.tables().SquaredNorm(t);
    squares = squares && square ? std::optional(*squares + *square) : std::nullopt;
  }
  if (squares) shared.grad_norm = std::sqrt(*squares);
  const auto unless_unanswered = [&](Run& run, const auto& take) {
    try {
      take();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage || step.recorded() != nullptr) throw;
      run.EndUnanswered(step.number(), error.what());
    }
  };
  StepQuestions questions;
  for (const auto& run : runs_) {
    if (run->stopped()) continue;
    unless_unanswered(*run, [&] { questions.gradients.push_back(run->Prepare(shared)); });
  }
  step.MakeReady(questions);
  ObservedStep observed = {i, step, {}};
  for (size_t r = 0; r < runs_.size(); ++r) {
    Run& run = *runs_[r];
    if (run.stopped()) continue;
    unless_unanswered(run, [&] { run.Take(shared); });
    if (run.result().unanswered) continue;
    observed.runs.push_back({run.run(), run.answer(), run.result().steps.back(), r, run.forward()});
  }
  if (options_.observer) options_.observer(observed);
  for (const auto& run : runs_) run->Forget();
}

ReplayStep ReplayRuns::TakeStep(size_t r) {
  ReplayResult& result = runs_[r]->result();
  ReplayStep last = std::move(result.steps.back());
  result.steps.pop_back();
  result.events.clear();
  return last;
}

std::vector<ReplayResult> ReplayRuns::TakeResults() {
  std::vector<ReplayResult> results;
  for (const auto& run : runs_) results.push_back(run->TakeResult());
  return results;
}

}  // namespace dlsim::sim
