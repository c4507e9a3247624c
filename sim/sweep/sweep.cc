// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/sweep.h"

#include <optional>
#include <span>
#include <utility>

#include "sim/advice/change.h"
#include "sim/replay/profile_source.h"
#include "sim/replay/run_states.h"
#include "sim/replay/trace_source.h"
#include "sim/sweep/sweep_run.h"
#include "sim/sweep/totals_run.h"

namespace dlsim::sim {
namespace {

StepAnswer AnswerOf(const ReplayStep& record) {
  const TensorStats& gradients = record.gradients;
  StepAnswer answer;
  answer.gradients = gradients;
  answer.energy_lost = gradients.energy_lost();
  answer.energy_bracket = {answer.energy_lost, answer.energy_lost};
  answer.outcome = {record.finite, record.lower_scale_helps, true};
  if (const auto& open = record.uncertain) {
    answer.exact = open->gradients.exact();
    answer.energy_bracket = open->gradients.RangeOf<&TensorStats::energy_lost>(gradients);
    answer.outcome.certain = open->certain;
  }
  return answer;
}

// The runs that ask about single tensors or elements, and take each step as in a replay.
class GeneralRuns {
 public:
  explicit GeneralRuns(const ReplayOptions& options) : states_(options) {}

  void Add(ReplayRun run, size_t place) {
    run.tensor_records = TensorRecords::kDropped;
    states_.Add(std::move(run));
    outcomes_.emplace_back();
    places_.push_back(place);
  }

  bool AllStopped() const { return states_.AllStopped(); }
  void Ask(const GradientStep& step, StepQuestions& questions) { states_.Ask(step, questions); }

  void Advance(const GradientStep& step, std::span<const StepWindow* const> windows,
               const StepMeasurement& measured) {
    const auto on_advanced = [&](size_t r, const auto&) {
      RunState& state = states_[r];
      if (state.stopped()) outcomes_[r].End(state.result().events.back());
      const ReplayStep record = state.TakeStep();
      outcomes_[r].Add(PathStepOf(record), AnswerOf(record),
                       windows.empty() ? nullptr : windows[places_[r]]);
    };
    states_.Advance(step, measured, on_advanced, [] {});
  }

  SweepOutcome Outcome(size_t run, size_t steps) {
    return outcomes_[run].Outcome(states_[run].result().summary.gradients, steps);
  }

 private:
  RunStates states_;
  std::vector<OutcomeSum> outcomes_;
  std::vector<size_t> places_;  // of their conversions among the windows of a step
};

class SweepConsumer final : public StepConsumer {
 public:
  SweepConsumer(std::vector<ReplayRun> runs, const SweepOptions& options,
                const GradientSource& source)
      : options_(options),
        edges_(source.edges()),
        totals_(options.replay),
        general_(options.replay) {
    if (options.windows == SearchWindows::kYes) windows_.emplace(runs, options.replay, source);
    const bool totals_tell_absmax = TotalsTellAbsmax(source);
    for (size_t r = 0; r < runs.size(); ++r) {
      ReplayRun& run = runs[r];
      const size_t place = windows_ ? windows_->PlaceOf(r) : 0;
      const bool asks_for_totals =
          AsksForTotals(run, options.replay) && (totals_tell_absmax || !run.scaler.uses_absmax());
      size_t& count = asks_for_totals ? totals_count_ : general_count_;
      places_.push_back({asks_for_totals, count++});
      asks_for_totals ? totals_.Add(std::move(run), place) : general_.Add(std::move(run), place);
    }
  }

  // The verdict is on all steps, also where the original would have ended every run.
  bool going() const override { return windows_ || totals_.going() || !general_.AllStopped(); }

  StepNeeds needs() const override {
    return windows_ || !general_.AllStopped() ? StepNeeds::kTensors : StepNeeds::kTotals;
  }

  const HistogramEdges* Edges() override {
    return totals_.going() ? &totals_.Ask(edges_) : nullptr;
  }

  void TakeTotals(ProfileTotals totals) override { totals_.Answer(std::move(totals)); }

  bool Ask(const GradientStep& step, StepQuestions& questions) override {
    unclear_.clear();
    if (windows_) windows_->Ask(step, questions);
    if (totals_.going() && edges_ == nullptr) AskUnclear(questions);
    if (!general_.AllStopped()) general_.Ask(step, questions);
    return !questions.all().empty();
  }

  void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) override {
    for (const Unclear& unclear : unclear_) {
      QuestionTable& table = totals_.table();
      table.At(unclear.index) =
          AnswerOf(table.question(unclear.index).kind(), measured.gradients,
                   measured.gradients.answers[unclear.answer], options_.replay.checked);
    }
    std::span<const StepWindow* const> windows;
    if (windows_) {
      windows_->Advance(i, step, measured);
      windows = windows_->latest();
    }
    if (totals_.going()) totals_.Advance(step.number(), windows);
    if (!general_.AllStopped()) general_.Advance(step, windows, measured.gradients);
    if (options_.progress) options_.progress(i + 1);
  }

  std::vector<SweepOutcome> Outcomes(size_t steps) {
    std::vector<SweepOutcome> outcomes;
    for (const Place& place : places_) {
      outcomes.push_back(place.asks_for_totals ? totals_.Outcome(place.index, steps)
                                               : general_.Outcome(place.index, steps));
    }
    return outcomes;
  }

  std::vector<SweepAdvice> Verdicts(const GradientSource& source,
                                    std::span<const std::string> formats) {
    if (!windows_) return {};
    std::vector<SweepAdvice> verdicts = windows_->Verdicts(source, formats, options_.tensors);
    for (SweepAdvice& verdict : verdicts) {
      AdviceRequest request;
      request.conversion.rounding = verdict.rounding;
      request.tensors = options_.tensors;
      AddChanges(source, request, options_.replay, verdict.advice);
    }
    return verdicts;
  }

 private:
  struct Place {
    bool asks_for_totals;
    size_t index;
  };

  // A question that the totals leave open, and the place of its answer from the elements.
  struct Unclear {
    uint32_t index;
    size_t answer;
  };

  // The largest sum over micro-steps follows from histograms by tensor, if at all; the elements of
  // a trace tell what its totals leave open.
  static bool TotalsTellAbsmax(const GradientSource& source) {
    if (source.edges() == nullptr || source.step_count() == 0) return true;
    const auto first = source.Load(0, StepNeeds::kTotals);
    return first->Totals(*source.edges(), {}).gradients.size() <= 1;
  }

  // Asks the elements what the totals do not tell.
  void AskUnclear(StepQuestions& questions) {
    for (const uint32_t index : totals_.table().asked()) {
      if (totals_.table().At(index).outcome.certain) continue;
      unclear_.push_back({index, questions.Add(totals_.table().question(index).ToMeasure())});
    }
  }

  const SweepOptions& options_;
  const HistogramEdges* edges_;  // those of a profile
  std::optional<SweepWindows> windows_;
  TotalsRuns totals_;
  GeneralRuns general_;
  size_t totals_count_ = 0, general_count_ = 0;
  std::vector<Place> places_;
  std::vector<Unclear> unclear_;
};

}  // namespace

SweepRun SweepWithVerdicts(const GradientSource& source, std::vector<ReplayRun> runs,
                           const SweepOptions& options, std::span<const std::string> formats) {
  SweepConsumer consumer(std::move(runs), options, source);
  ForEachStep(source, options.replay.step, consumer);
  return {consumer.Outcomes(source.step_count()), consumer.Verdicts(source, formats)};
}

std::vector<SweepOutcome> Sweep(const GradientSource& source, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  SweepConsumer consumer(std::move(runs), options, source);
  ForEachStep(source, options.replay.step, consumer);
  return consumer.Outcomes(source.step_count());
}

std::vector<SweepOutcome> Sweep(const TraceReader& trace, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  TraceSource source(trace, options.replay.accumulate_steps);
  source.LeaveOutLosses();
  return Sweep(source, std::move(runs), options);
}

std::vector<SweepOutcome> Sweep(const ProfileReader& profile, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  ProfileSource source(profile, options.tensors);
  source.LeaveOutLosses();
  return Sweep(source, std::move(runs), options);
}

}  // namespace dlsim::sim
