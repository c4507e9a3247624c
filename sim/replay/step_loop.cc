// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/step_loop.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "sim/replay/step_queue.h"

namespace dlsim::sim {

bool ConsumerGroup::going() const {
  return std::ranges::any_of(members_, [](const StepConsumer* member) { return member->going(); });
}

StepNeeds ConsumerGroup::needs() const {
  const bool totals = std::ranges::all_of(
      members_, [](const StepConsumer* member) { return member->needs() == StepNeeds::kTotals; });
  return totals ? StepNeeds::kTotals : StepNeeds::kTensors;
}

const HistogramEdges* ConsumerGroup::Edges() {
  for (StepConsumer* const member : members_) {
    if (const HistogramEdges* const edges = member->Edges()) {
      counts_totals_ = member;
      return edges;
    }
  }
  return nullptr;
}

void ConsumerGroup::TakeTotals(ProfileTotals totals) {
  counts_totals_->TakeTotals(std::move(totals));
}

std::optional<StepQuestions> ConsumerGroup::Ask(const GradientStep& step) {
  StepQuestions all;
  questions_.clear();
  bool measures = false;
  for (StepConsumer* const member : members_) {
    std::optional<StepQuestions> own = member->Ask(step);
    measures |= own.has_value();
    questions_.push_back(own ? own->size() : 0);
    if (own) std::ranges::move(*own, std::back_inserter(all));
  }
  return measures ? std::optional(std::move(all)) : std::nullopt;
}

void ConsumerGroup::Advance(size_t i, const GradientStep& step, const StepMeasurement& measured) {
  auto answers = measured.answers.begin();
  for (size_t m = 0; m < members_.size(); ++m) {
    const auto end = answers + static_cast<ptrdiff_t>(questions_[m]);
    members_[m]->Advance(i, step, {measured.micro_steps, measured.tensors, {answers, end}});
    answers = end;
  }
}

void ForEachStep(const GradientSource& source, const StepOptions& options, StepConsumer& consumer) {
  StepQueue<std::unique_ptr<GradientStep>> queue(
      source.step_count(), [&](size_t i) { return source.Load(i, consumer.needs()); });
  for (size_t i = 0; i < source.step_count() && consumer.going(); ++i) {
    std::unique_ptr<GradientStep> step = queue.Take(i);
    StepMeasurement measured;
    queue.LoadBeside(i + 1, [&] {
      if (const HistogramEdges* const edges = consumer.Edges()) {
        consumer.TakeTotals(step->Totals(*edges, options));
      }
      const std::optional<StepQuestions> questions = consumer.Ask(*step);
      if (questions) measured = step->Measure(*questions, options);
    });
    consumer.Advance(i, *step, measured);
    queue.GiveBack(std::move(step));
  }
}

}  // namespace dlsim::sim
