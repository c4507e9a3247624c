// SPDX-License-Identifier: Apache-2.0
// What the histograms of a tensor say of a step's question: verdicts exactly where they can, all
// else with bounds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "dlsim/measure_step.h"
#include "src/histogram/histogram_question.h"

namespace dlsim::sim {

// Where the magnitudes of results reach a limit.
struct LimitCut {
  std::array<uint32_t, 2> reached = {};  // per sign: input magnitude from which on they do ...
  std::array<uint32_t, 2> nan = {};      // ... and from which on they are NaN, which does not
  std::optional<bool> zero, infinity;    // of the inputs zero and infinity; empty: NaN
};

// What is known of the gradient that one part contributes.
struct PartAnswer {
  HistogramAnswer counters;
  GradientBound low, estimate, high;
  // Of the results of the largest input of each sign, magnitudes; 0 where there is none.
  std::array<float, 2> scaled = {}, unscaled = {};
  double sum_radius = 0;  // the estimated sum is off by at most this
  bool all_zero = true;   // every result is zero
};

// A question with its thresholds; made once, asked of any number of tensors and steps.
class ProfileQuestion {
 public:
  // Not for stochastic rounding.
  ProfileQuestion(const Conversion& conversion, float scale,
                  const std::optional<DetailQuestion>& detail);

  // Answers for one tensor from the histograms of its parts.
  TensorAnswer Answer(std::span<const HistogramIndex> parts) const;

  bool Is(const Conversion& conversion, const std::optional<DetailQuestion>& detail) const {
    return question_.conversion() == conversion && detail_ == detail;
  }

 private:
  // `value` is what is compared, `reaches` whether it reaches the limit.
  template <class Value, class Reaches>
  LimitCut CutAt(const Value& value, const Reaches& reaches) const;

  // Sums of results that tell whether all are finite, and whether all are zero.
  struct Magnitudes {
    double scaled = 0, unscaled = 0;
  };
  Magnitudes AddUp(const HistogramIndex& index, PartAnswer& part) const;
  PartAnswer Look(const HistogramIndex& index) const;
  void BoundSquares(const HistogramIndex& index, PartAnswer& part) const;
  void BoundScaledSquares(const HistogramIndex& index, PartAnswer& part) const;
  void BoundScaledSum(const HistogramIndex& index, PartAnswer& part) const;
  void BoundDetail(const HistogramIndex& index, const Magnitudes& sums, PartAnswer& part) const;

  PartAnswer LookAtNan(const HistogramIndex& index) const;

  HistogramQuestion question_;
  std::optional<DetailQuestion> detail_;
  LimitCut edge_, limit_;
};

// Returns the gradient that the parts make together, summed in float32.
PartAnswer SumParts(std::span<const PartAnswer> parts);

}  // namespace dlsim::sim
