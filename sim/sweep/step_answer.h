// SPDX-License-Identifier: Apache-2.0
// What one question of a sweep finds at one step.
#pragma once

#include <cstdint>
#include <vector>

#include "dlsim/histogram.h"
#include "dlsim/sim/replay.h"
#include "sim/sweep/step_totals.h"
#include "src/histogram/histogram_question.h"

namespace dlsim::sim {

// What runs that ask alike have in common, but for the scale.
struct SweepKind {
  Conversion conversion;
  FiniteTest finite_test = FiniteTest::kElementwise;
  bool needs_absmax = false;

  friend bool operator==(const SweepKind&, const SweepKind&) = default;
};

struct FiniteOutcome {
  bool finite = true;
  bool lower_scale_helps = true;
  bool certain = true;  // false: the totals do not tell, and this is the likely outcome
};

struct StepAnswer {
  // Of parameter gradients, what TotalsRun reads: the counters of results, which are the middle of
  // their brackets where the edges do not have them.
  TensorStats gradients;
  double energy_lost = 0;
  Bracket<double> energy_bracket;
  bool exact = true;  // all of the above

  FiniteOutcome outcome;
  float absmax = 0;  // as ScalerInput::absmax
};

// Judges by the totals whether a step is finite.
FiniteOutcome JudgeTotals(const SweepKind& kind, const HistogramQuestion& question,
                          const StepTotals& totals);

// Returns what MeasureStep's answers for the question say of a step.
StepAnswer AnswerOf(const SweepKind& kind, const StepMeasurement& step,
                    const std::vector<TensorAnswer>& answers, Checked checked);

// A kind at a scale, with its thresholds.
class SweepQuestion {
 public:
  SweepQuestion(const SweepKind& kind, float scale)
      : kind_(kind), question_(kind.conversion, scale) {}

  const SweepKind& kind() const { return kind_; }
  float scale() const { return question_.scale(); }
  std::vector<uint32_t> ThresholdBits() const { return question_.ThresholdBits(); }

  // Looks up the thresholds among the edges of the totals to come.
  void PlaceIn(const HistogramEdges& edges) { places_ = question_.PlacesIn(edges); }

  StepAnswer Answer(const StepTotals& totals) const;

  // Returns the question in the form of MeasureStep.
  StepQuestion ToMeasure() const;

 private:
  float Absmax(const StepTotals& totals) const;

  SweepKind kind_;
  HistogramQuestion question_;
  std::array<HistogramQuestion::Places, 2> places_;
};

}  // namespace dlsim::sim
