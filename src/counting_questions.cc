// SPDX-License-Identifier: Apache-2.0
// Measurements in terms of edges.
#include <bit>
#include <cmath>
#include <limits>

#include "check.h"
#include "dlsim/thresholds.h"
#include "parallel.h"

namespace dlsim {
namespace {

std::vector<Thresholds> ThresholdsOf(std::span<const Measurement> questions) {
  std::vector<Thresholds> thresholds;
  for (const Measurement& question : questions) {
    DLSIM_CHECK(CanCount(question));
    thresholds.push_back(FindThresholds(question.conversion, question.scale, Sign::kPositive));
  }
  return thresholds;
}

EdgeSet EdgesOf(std::span<const Thresholds> thresholds) {
  std::vector<uint32_t> counted, summed;
  for (const Thresholds& t : thresholds) {
    counted.insert(counted.end(), {t.normal, t.overflow});
    summed.push_back(t.nonzero);
  }
  return {std::move(counted), std::move(summed)};
}

bool BecomesNonfinite(const Measurement& question, float value) {
  const DefaultFloatEnvironment environment;
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const uint32_t scaled = std::bit_cast<uint32_t>(value * question.scale);
  const uint32_t code = Encode(spec, question.conversion.rounding, scaled).code;
  const CodeClass kind = Classify(spec, code);
  return kind == CodeClass::kInfinity || kind == CodeClass::kNan;
}

OutcomeCounts OutcomeOfMeasure(const TensorStats& stats) {
  return {stats.underflow, stats.subnormal, stats.overflow, stats.nonfinite_outputs,
          stats.underflow_sum_of_squares};
}

}  // namespace

bool CanCount(const Measurement& question) {
  const Rounding rounding = question.conversion.rounding;
  const bool symmetric = rounding == Rounding::kNearestEven || rounding == Rounding::kTowardZero ||
                         rounding == Rounding::kNearestAway;
  return symmetric && !std::isnan(question.scale);
}

CountingQuestions::CountingQuestions(std::span<const Measurement> questions)
    : CountingQuestions(questions, ThresholdsOf(questions)) {}

CountingQuestions::CountingQuestions(std::span<const Measurement> questions,
                                     std::span<const Thresholds> thresholds)
    : edges_(EdgesOf(thresholds)) {
  for (size_t q = 0; q < questions.size(); ++q) {
    const Measurement& question = questions[q];
    const Thresholds& t = thresholds[q];
    Question prepared;
    prepared.normal = edges_.CountedIndex(t.normal);
    prepared.nonzero = edges_.CountedIndex(t.nonzero);
    prepared.overflow = edges_.CountedIndex(t.overflow);
    prepared.energy = edges_.SummedIndex(t.nonzero);
    prepared.zero_to_nonfinite = BecomesNonfinite(question, 0.0f);
    prepared.infinity_to_nonfinite =
        BecomesNonfinite(question, std::numeric_limits<float>::infinity());
    prepared.overflow_to_nonfinite = question.conversion.overflow == Overflow::kInfinity;
    questions_.push_back(prepared);
  }
}

MeasuredCounts CountingQuestions::Answer(const EdgeStats& stats) const {
  MeasuredCounts answer = {stats.input, {}};
  const InputStats& input = stats.input;
  const uint64_t nonzero = input.elements - input.zeros - input.nan - input.inf;
  for (const Question& question : questions_) {
    OutcomeCounts outcome;
    outcome.underflow = stats.below[question.nonzero];
    outcome.subnormal = stats.below[question.normal] - outcome.underflow;
    outcome.overflow = nonzero - stats.below[question.overflow];
    outcome.nonfinite_outputs = input.nan + (question.zero_to_nonfinite ? input.zeros : 0) +
                                (question.infinity_to_nonfinite ? input.inf : 0) +
                                (question.overflow_to_nonfinite ? outcome.overflow : 0);
    outcome.underflow_sum_of_squares = stats.squares_below[question.energy];
    answer.outcomes.push_back(outcome);
  }
  return answer;
}

MeasuredCounts MeasureCounts(std::span<const float> values,
                             std::span<const Measurement> questions) {
  std::vector<Measurement> counted;
  for (const Measurement& question : questions) {
    DLSIM_CHECK(question.conversion.rounding != Rounding::kStochastic);
    if (CanCount(question)) counted.push_back(question);
  }
  const CountingQuestions prepared(counted);
  MeasuredCounts answer = prepared.Answer(MeasureEdges(values, prepared.edges()));
  for (size_t q = 0; q < questions.size(); ++q) {
    if (CanCount(questions[q])) continue;
    const auto place = answer.outcomes.begin() + static_cast<std::ptrdiff_t>(q);
    answer.outcomes.insert(place, OutcomeOfMeasure(Measure(values, questions[q])));
  }
  return answer;
}

}  // namespace dlsim
