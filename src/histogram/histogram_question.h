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

// What a histogram says of one question. A counter is exact where its bracket is: for every
// question whose thresholds are edges of the histogram.
struct HistogramAnswer {
  // The counters where they are exact, else the middle of their brackets. The sums of squares are
  // exact to float64's rounding error, but for the quantised one, which is that of the values
  // before quantisation.
  TensorStats stats;

  Bracket<uint64_t> underflow, subnormal, overflow, nonfinite_outputs;
  Bracket<double> underflow_squares;
  Bracket<double> quantized_squares;  // what quantisation can make of the sum of squares
  Bracket<double> error_squares;      // TensorStats has that of values spread evenly

  // True if all counters and the energy lost are exact.
  bool exact() const {
    return underflow.exact() && subnormal.exact() && overflow.exact() &&
           nonfinite_outputs.exact() && underflow_squares.exact();
  }

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

  // The counters of the nonzero finite values of one sign.
  struct Counters {
    Bracket<uint64_t> underflow, subnormal, overflow, nonfinite_outputs;
    Bracket<double> underflow_squares;
  };
  // `where` is Of(sign), or its places.
  template <class Where>
  static Counters Count(Sign sign, const Where& where, const HistogramIndex& index) {
    const HistogramIndex::Below nonzero = index.At(sign, where.nonzero);
    const Bracket<uint64_t> all = index.All(sign).count;
    return {nonzero.count, Between(nonzero.count, index.At(sign, where.normal).count),
            Between(index.At(sign, where.overflow).count, all),
            Between(index.At(sign, where.nonfinite).count, all), nonzero.squares};
  }

  // The infinite and NaN outputs of all other inputs.
  uint64_t OtherNonfinite(uint64_t zeros, uint64_t nan, uint64_t inf) const {
    return nan + (signs_[0].zero_to_nonfinite ? zeros : 0) +
           (signs_[0].infinity_to_nonfinite ? inf : 0);
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
