// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/step_loop.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/caller.h"
#include "sim/replay/step_queue.h"
#include "sim/replay/steps_read_ahead.h"
#include "src/base/parallel_in_order.h"

namespace dlsim::sim {

namespace {

// About what an answer takes for a tensor, the tensor itself with its channels, and a bin of
// totals.
constexpr uint64_t kAnswerBytes = 250, kTensorBytes = 1000, kBinBytes = 128;

}  // namespace

size_t QuestionsAtOnce(size_t tensors, uint64_t memory_bytes) {
  const uint64_t most_answers = memory_bytes / 4 / kAnswerBytes;
  return std::max<uint64_t>(1, most_answers / std::max<uint64_t>(1, tensors));
}

size_t StepQuestions::PlaceOf(const StepQuestion& question) const {
  const auto found = std::ranges::find_if(
      all_, [&](const StepQuestion& other) { return other.SameButAsked(question); });
  return static_cast<size_t>(found - all_.begin());
}

size_t StepQuestions::Add(StepQuestion question) {
  const size_t place = PlaceOf(question);
  if (place == all_.size()) {
    all_.push_back(std::move(question));
  } else if (question.asked == Asked::kAll) {
    all_[place].asked = Asked::kAll;
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

// What is measured of a step before it is its turn: what was asked of a step before, which mostly
// is what will be asked.
struct Guess {
  std::vector<StepQuestion> questions;
  StepOptions options;
  std::vector<Conversion> forward;
  std::shared_ptr<const HistogramEdges> edges;  // of totals; null: none are counted

  bool empty() const { return questions.empty() && edges == nullptr; }
};

// A step that is open, with the answers to a guess.
struct OpenStep {
  std::unique_ptr<GradientStep> step;
  std::shared_ptr<const Guess> guess;  // null: nothing was measured yet
  MeasuredStep measured;
  ProfileTotals totals;
};

// How many tensors are recorded with a step.
size_t CountTensors(const GradientStep& step) {
  size_t tensors = 0;
  if (const TraceStep* const recorded = step.Recorded()) {
    for (const Recording& recording : recorded->recordings) tensors += recording.tensors.size();
  }
  return tensors;
}

// Answers questions by what was measured already, and measures the rest.
StepMeasurement Complete(OpenStep& open, std::span<const StepQuestion> questions,
                         StepOptions options) {
  if (!open.guess || (options.channels && !open.guess->options.channels)) {
    return open.step->Measure(questions, options);
  }
  std::vector<StepQuestion> guessed = open.guess->questions;
  StepMeasurement result = std::move(open.measured.gradients);
  std::vector<std::vector<TensorAnswer>> answers = std::exchange(result.answers, {});
  std::vector<StepQuestion> missing;
  std::vector<size_t> places;
  for (const StepQuestion& question : questions) {
    const auto found = std::ranges::find_if(guessed, [&](const StepQuestion& guess) {
      return guess.SameButAsked(question) &&
             (guess.asked == question.asked || guess.asked == Asked::kAll);
    });
    if (found == guessed.end()) {
      places.push_back(result.answers.size());
      missing.push_back(question);
      result.answers.emplace_back();
    } else {
      result.answers.push_back(std::move(answers[static_cast<size_t>(found - guessed.begin())]));
      answers.erase(answers.begin() + (found - guessed.begin()));
      guessed.erase(found);  // without their sums, questions may be the same
    }
  }
  if (!options.channels) result.channels.clear();
  if (missing.empty()) return result;
  options.channels = false;
  StepMeasurement rest = open.step->Measure(missing, options);
  for (size_t i = 0; i < places.size(); ++i) {
    result.answers[places[i]] = std::move(rest.answers[i]);
  }
  return result;
}

std::vector<StepQuestion> WithoutSums(std::span<const StepQuestion> questions) {
  std::vector<StepQuestion> without(questions.begin(), questions.end());
  for (StepQuestion& question : without) {
    if (question.detail) question.detail->sums = false;
  }
  return without;
}

// Measures a step; the sums of details, which cost the most, and the norms of questions for errors
// only where they decide.
StepMeasurement MeasureWithSums(OpenStep& open, std::span<const StepQuestion> questions,
                                StepOptions options) {
  std::vector<StepQuestion> asked = WithoutSums(questions);
  StepMeasurement measured = Complete(open, asked, options);
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
  StepMeasurement with_sums = open.step->Measure(asked, options);
  for (size_t i = 0; i < places.size(); ++i) {
    measured.answers[places[i]] = std::move(with_sums.answers[i]);
  }
  return measured;
}

// Passes steps to a consumer.
class StepLoop {
 public:
  StepLoop(const GradientSource& source, const StepOptions& options, StepConsumer& consumer)
      : source_(source), options_(options), consumer_(consumer) {}

  void Run() {
    const size_t count = source_.step_count();
    size_t i = 0;
    // A first step is measured by all threads; it tells what to guess.
    for (; i < count && consumer_.going() && !MayRunAhead(i, count); ++i) TakeOne(i);
    if (i < count && consumer_.going()) RunAhead(i, count);
  }

 private:
  // Thrown where no further step is needed.
  struct Enough {};

  // Counting totals takes as long as answering this number of questions.
  static constexpr size_t kQuestionsPerTotals = 4;

  // Whether steps from the i-th on are small, and can be measured before it is their turn.
  bool MayRunAhead(size_t i, size_t count) const {
    if (!guess_ || guess_->empty() || options_.device != nullptr) return false;
    return ThreadsFor(count - i, Elements()) > 1 && source_.HasSmallSteps() && MostAhead() > 1;
  }

  // How many steps may be measured ahead: they hold their tensors, and the answers to the guess.
  uint64_t MostAhead() const {
    const uint64_t answers = guess_->questions.size() + guess_->forward.size();
    const uint64_t bins = guess_->edges ? guess_->edges->bin_count() : 0;
    return options_.memory_bytes /
           (tensors_ * (kTensorBytes + answers * kAnswerBytes) + bins * kBinBytes + 1);
  }

  // Of all steps, as often as they are looked at.
  uint64_t Elements() const {
    const size_t looks =
        guess_->questions.size() + (guess_->edges == nullptr ? 0 : kQuestionsPerTotals);
    return source_.facts().file_bytes / sizeof(float) * looks;
  }

  // Opens the next step while this one is measured.
  void TakeOne(size_t i) {
    CurrentCaller().CheckCanceled();
    OpenStep open = {queue_.Take(i), nullptr, {}, {}};
    MeasuredStep measured;
    const size_t next = HoldsTwo(*open.step) ? i + 1 : source_.step_count();
    queue_.LoadDuring(next, [&] { measured = MeasureAsked(open); });
    consumer_.Advance(i, *open.step, measured);
    queue_.GiveBack(std::move(open.step));
  }

  // Whether the next step may be open while this one is measured.
  bool HoldsTwo(const GradientStep& step) const {
    return 2 * kTensorBytes * CountTensors(step) <= options_.memory_bytes;
  }

  void RunAhead(size_t first, size_t count) {
    const StepNeeds needs = consumer_.needs();
    const uint64_t ahead = MostAhead();
    const uint64_t each = options_.memory_bytes / std::min<uint64_t>(ahead, kEnoughAhead);
    StepsReadAhead read_ahead(source_, first);
    const auto open = [&](size_t k) {
      read_ahead.Before(first + k);
      OpenStep step = {source_.Load(first + k, needs), LatestGuess(), {}, {}};
      MeasureGuess(each, step);
      return step;
    };
    const auto take = [&](size_t k, OpenStep step) {
      if (!consumer_.going()) throw Enough();
      CurrentCaller().CheckCanceled();
      const MeasuredStep measured = MeasureAsked(step);
      consumer_.Advance(first + k, *step.step, measured);
    };
    try {
      ParallelInOrder(count - first, open, take, Elements(), ahead);
    } catch (const Enough&) {
    }
  }

  void MeasureGuess(uint64_t memory_bytes, OpenStep& open) const {
    const Guess& guess = *open.guess;
    StepOptions options = guess.options;
    options.memory_bytes = memory_bytes;
    if (guess.edges) open.totals = open.step->Totals(*guess.edges, options);
    if (!guess.questions.empty()) {
      open.measured.gradients = open.step->Measure(guess.questions, options);
    }
    if (!guess.forward.empty()) {
      open.measured.forward = open.step->MeasureForward(guess.forward, options);
    }
  }

  // Measures what the consumer asks.
  MeasuredStep MeasureAsked(OpenStep& open) {
    MeasuredStep measured;
    const HistogramEdges* const edges = consumer_.Edges();
    if (edges != nullptr) consumer_.TakeTotals(TotalsOf(open, *edges));
    tensors_ = CountTensors(*open.step);
    StepQuestions questions(QuestionsAtOnce(std::max(tensors_, answered_), options_.memory_bytes));
    StepOptions options = options_;
    if (consumer_.Ask(*open.step, questions)) {
      options.channels = questions.channels();
      measured.gradients = MeasureWithSums(open, questions.all(), options);
      answered_ = measured.gradients.tensors.size();
    }
    if (!questions.forward().empty()) {
      measured.forward = open.guess && open.guess->forward == questions.forward()
                             ? std::move(open.measured.forward)
                             : open.step->MeasureForward(questions.forward(), options_);
    }
    LearnFrom(questions, options, edges);
    return measured;
  }

  ProfileTotals TotalsOf(OpenStep& open, const HistogramEdges& edges) const {
    const bool guessed = open.guess && open.guess->edges && *open.guess->edges == edges;
    return guessed ? std::move(open.totals) : open.step->Totals(edges, options_);
  }

  // Scales of single tensors are those of one step.
  void LearnFrom(const StepQuestions& questions, const StepOptions& options,
                 const HistogramEdges* edges) {
    Guess guess = {WithoutSums(questions.all()), options, questions.forward(), EdgesLike(edges)};
    std::erase_if(guess.questions,
                  [](const StepQuestion& question) { return !question.tensor_scales.empty(); });
    const std::lock_guard lock(mutex_);
    guess_ = std::make_shared<const Guess>(std::move(guess));
  }
  // A copy that lives on: the one of the latest guess, if they are the same.
  std::shared_ptr<const HistogramEdges> EdgesLike(const HistogramEdges* edges) const {
    if (edges == nullptr) return nullptr;
    if (guess_ && guess_->edges && *guess_->edges == *edges) return guess_->edges;
    return std::make_shared<const HistogramEdges>(*edges);
  }
  std::shared_ptr<const Guess> LatestGuess() {
    const std::lock_guard lock(mutex_);
    return guess_;
  }

  const GradientSource& source_;
  const StepOptions& options_;
  StepConsumer& consumer_;
  StepQueue<std::unique_ptr<GradientStep>> queue_{
      source_.step_count(), [this](size_t i) { return source_.Load(i, consumer_.needs()); }};
  size_t tensors_ = 0;   // recorded with the latest step
  size_t answered_ = 0;  // those of the latest answers, which are also a profile's
  std::mutex mutex_;     // of the guess
  std::shared_ptr<const Guess> guess_;
};

}  // namespace

void ForEachStep(const GradientSource& source, const StepOptions& options, StepConsumer& consumer) {
  StepLoop(source, options, consumer).Run();
}

}  // namespace dlsim::sim
