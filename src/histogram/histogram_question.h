// SPDX-License-Identifier: Apache-2.0
// What a conversion at a loss scale does to the values of a histogram.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dlsim/tensor_stats.h"
#include "src/histogram/histogram_index.h"
#include "src/histogram/thresholds.h"

namespace dlsim {

// The counters of a question's results. One is exact where its bracket is: for every question whose
// thresholds are edges of the histogram.
struct HistogramCounters : CounterBrackets {
  Bracket<uint64_t> nonfinite_outputs;

  // True if all counters and the energy lost are exact.
  bool exact() const { return CounterBrackets::exact() && nonfinite_outputs.exact(); }

  // Sets the same counters to the middle of their brackets.
  void SetMiddles(TensorStats& stats) const;
};

// What a histogram says of one question.
struct HistogramAnswer : HistogramCounters {
  // The counters where they are exact, else the middle of their brackets. The sums of squares are
  // exact to float64's rounding error, but for the quantised one, which is that of the values
  // before quantisation, and that of errors, which is that of values spread evenly.
  TensorStats stats;

  Bracket<double> quantized_squares;  // what quantisation can make of the sum of squares

  // Adds what another histogram says of the same question.
  void Merge(const HistogramAnswer& other);
};

// A question with its thresholds, made once, asked any number of times. Not for stochastic
// rounding.
class HistogramQuestion {
 public:
  // `near` is a question of the same conversion at another scale, from which the search for the
  // thresholds begins: what is found is the same.
  HistogramQuestion(const Conversion& conversion, float scale,
                    const HistogramQuestion* near = nullptr);

  HistogramAnswer Ask(const HistogramIndex& index) const;

  // The distinct magnitudes that edges must have for exact answers.
  std::vector<uint32_t> ThresholdBits() const;

  // True if quantising makes some of the values infinite or NaN, which is exact for every scale.
  bool MakesNonfinite(const Histogram& histogram) const;

  // What a finite value becomes.
  struct Result {
    float scaled = 0;  // decoded, still scaled
    float unscaled = 0;
  };
  Result Quantize(float value) const;

  // Where the outcome changes for values of one sign.
  struct OfSign : Thresholds {
    uint32_t largest = codec::kInfinityBits;    // from here on the output is the largest finite ...
    uint32_t nonfinite = codec::kInfinityBits;  // ... and from here on infinite or NaN
    bool zero_to_nonfinite = false, infinity_to_nonfinite = false;
  };
  const OfSign& Of(Sign sign) const { return signs_[static_cast<size_t>(sign)]; }

  // The same among the bins of edges.
  struct Places {
    EdgePlace nonzero, normal, overflow, nonfinite;
  };
  std::array<Places, 2> PlacesIn(const HistogramEdges& edges) const;

  // The counters of all values; of errors nothing. `where` is Of(sign), or its places.
  template <class Where>
  HistogramCounters Count(const std::array<Where, 2>& where, const HistogramIndex& index) const {
    const Histogram& histogram = index.histogram();
    HistogramCounters counters;
    for (const Sign sign : kSigns) {
      const Where& of_sign = where[static_cast<size_t>(sign)];
      const HistogramIndex::Below nonzero = index.At(sign, of_sign.nonzero);
      const Bracket<uint64_t> all = index.All(sign).count;
      counters.underflow.Add(nonzero.count);
      counters.subnormal.Add(Between(nonzero.count, index.At(sign, of_sign.normal).count));
      counters.overflow.Add(Between(index.At(sign, of_sign.overflow).count, all));
      counters.nonfinite_outputs.Add(Between(index.At(sign, of_sign.nonfinite).count, all));
      counters.underflow_sum_of_squares.Add(nonzero.squares);
    }
    const uint64_t other = histogram.nan + (signs_[0].zero_to_nonfinite ? histogram.zeros : 0) +
                           (signs_[0].infinity_to_nonfinite ? histogram.inf : 0);
    counters.nonfinite_outputs.Add({other, other});
    return counters;
  }

  const Conversion& conversion() const { return conversion_; }
  float scale() const { return scale_; }

 private:
  // Of the nonzero finite values of one sign that stay finite.
  struct ErrorSquares {
    Bracket<double> range;
    double likely = 0;
  };
  OfSign GuessFrom(const HistogramQuestion& near, Sign sign) const;
  OfSign Find(Sign sign, const OfSign& guess) const;
  ErrorSquares Errors(Sign sign, const HistogramIndex& index) const;
  uint32_t FirstPrecise(Sign sign) const;
  Bracket<double> QuantizedSquares(Sign sign, const HistogramIndex& index) const;
  Bracket<double> ClampedInfinities(const Histogram& histogram) const;

  Conversion conversion_;
  float scale_;
  std::array<OfSign, 2> signs_;
};

}  // namespace dlsim
