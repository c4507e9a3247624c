// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/step_loop.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/caller.h"
#include "sim/replay/step_queue.h"

namespace dlsim::sim {

size_t QuestionsAtOnce(size_t tensors) {
  constexpr size_t kMostAnswers = size_t{1} << 21;  // about 250 bytes each
  return std::max<size_t>(1, kMostAnswers / std::max<size_t>(1, tensors));
}

size_t StepQuestions::Add(StepQuestion question) {
  const auto found = std::ranges::find_if(
      all_, [&](const StepQuestion& other) { return other.SameButAsked(question); });
  const auto place = static_cast<size_t>(found - all_.begin());
  if (found == all_.end()) {
    all_.push_back(std::move(question));
  } else if (question.asked == Asked::kAll) {
    found->asked = Asked::kAll;
  }
  return place;
}

size_t StepQuestions::AddForward(const Conversion& conversion) {
  const auto found = std::ranges::find(forward_, conversion);
  const auto place = static_cast<size_t>(found - forward_.begin());
  if (found == forward_.end()) forward_.push_back(conversion);
  return place;
}

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

bool ConsumerGroup::Ask(const GradientStep& step, StepQuestions& questions) {
  bool measures = false;
  for (StepConsumer* const member : members_) measures |= member->Ask(step, questions);
  return measures;
}

void ConsumerGroup::Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) {
  for (StepConsumer* const member : members_) member->Advance(i, step, measured);
}

namespace {

// Bounds the sums of tensors, and that of all squares. Rounding at most doubles what is normal.
class SumBound {
 public:
  void Add(double elements, double largest) {
    sum_of_squares_ += elements * largest * largest;
    largest_sum_ = std::fmax(largest_sum_, elements * largest);
  }

  bool MayOverflow() const {
    constexpr double kFar = 0x1p126;  // not even close to float32's largest value
    return !(sum_of_squares_ < kFar && largest_sum_ < kFar);
  }

 private:
  double sum_of_squares_ = 0, largest_sum_ = 0;
};

// Returns whether float32 sums of the still scaled gradients, or of their squares, may overflow.
bool MayOverflowSums(const StepQuestion& question, const std::vector<TensorAnswer>& answers) {
  SumBound bound;
  for (size_t t = 0; t < answers.size(); ++t) {
    double largest = 0, elements = 0;
    for (const TensorStats& part : answers[t].parts) {
      if (part.nonfinite() > 0) return true;  // which may become the format's largest value
      largest += std::fmax(1, 2 * std::fabs(double{part.absmax} * double{question.ScaleOf(t)}));
      elements = std::fmax(elements, static_cast<double>(part.elements));
    }
    bound.Add(elements, largest);
  }
  return bound.MayOverflow();
}

// Returns whether the norm of unscaled gradients may overflow float32 though all elements are
// finite; where one is not, a question for errors tells.
bool MayOverflowNorm(const std::vector<TensorAnswer>& answers) {
  SumBound bound;
  for (const TensorAnswer& answer : answers) {
    for (const TensorStats& part : answer.parts) {
      bound.Add(static_cast<double>(part.elements), 2 * double{part.absmax});
    }
  }
  return bound.MayOverflow();
}

// Returns whether what was measured first leaves open what a question asks.
bool IsOpen(const StepQuestion& question, const std::vector<TensorAnswer>& answers) {
  if (question.asked == Asked::kErrors) return MayOverflowNorm(answers);
  return question.detail && question.detail->sums && MayOverflowSums(question, answers);
}

// Measures a step; the sums of details, which cost the most, and the norms of questions for errors
// only where they decide.
StepMeasurement MeasureWithSums(const GradientStep& step, std::span<const StepQuestion> questions,
                                StepOptions options) {
  std::vector<StepQuestion> asked(questions.begin(), questions.end());
  for (StepQuestion& question : asked) {
    if (question.detail) question.detail->sums = false;
  }
  StepMeasurement measured = step.Measure(asked, options);
  std::vector<size_t> places;
  asked.clear();
  for (size_t q = 0; q < questions.size(); ++q) {
    if (!IsOpen(questions[q], measured.answers[q])) continue;
    places.push_back(q);
    asked.push_back(questions[q]);
    asked.back().asked = Asked::kAll;
  }
  if (places.empty()) return measured;
  options.channels = false;
  StepMeasurement with_sums = step.Measure(asked, options);
  for (size_t i = 0; i < places.size(); ++i) {
    measured.answers[places[i]] = std::move(with_sums.answers[i]);
  }
  return measured;
}

}  // namespace

void ForEachStep(const GradientSource& source, const StepOptions& options, StepConsumer& consumer) {
  StepQueue<std::unique_ptr<GradientStep>> queue(
      source.step_count(), [&](size_t i) { return source.Load(i, consumer.needs()); });
  for (size_t i = 0; i < source.step_count() && consumer.going(); ++i) {
    CurrentCaller().CheckCancelled();
    std::unique_ptr<GradientStep> step = queue.Take(i);
    MeasuredStep measured;
    queue.LoadBeside(i + 1, [&] {
      if (const HistogramEdges* const edges = consumer.Edges()) {
        consumer.TakeTotals(step->Totals(*edges, options));
      }
      StepQuestions questions;
      if (consumer.Ask(*step, questions)) {
        StepOptions asked = options;
        asked.channels = questions.channels();
        measured.gradients = MeasureWithSums(*step, questions.all(), asked);
      }
      if (!questions.forward().empty()) {
        measured.forward = step->MeasureForward(questions.forward(), options);
      }
    });
    consumer.Advance(i, *step, measured);
    queue.GiveBack(std::move(step));
  }
}

}  // namespace dlsim::sim
