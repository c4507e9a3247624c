// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/sum_item.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dlsim/measure_step.h"

namespace dlsim::sim {
namespace {

// A float64 sum that keeps what each addition loses (Neumaier).
class ReferenceSum {
 public:
  void Add(double value) {
    const double next = sum_ + value;
    lost_ += std::fabs(sum_) >= std::fabs(value) ? (sum_ - next) + value : (value - next) + sum_;
    sum_ = next;
  }
  double value() const { return std::isfinite(sum_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

enum class Terms { kSigned, kMagnitudes };

double TermOf(double term, Terms terms) {
  return terms == Terms::kMagnitudes ? std::fabs(term) : term;
}

std::vector<double> ReferenceOfAxis(std::span<const float> values, const AxisShape& shape,
                                    Terms terms) {
  std::vector<double> sums;
  for (uint64_t output = 0; output < shape.outer * shape.inner; ++output) {
    const uint64_t first = output / shape.inner * shape.length * shape.inner + output % shape.inner;
    ReferenceSum sum;
    for (uint64_t i = 0; i < shape.length; ++i) {
      sum.Add(TermOf(static_cast<double>(values[first + i * shape.inner]), terms));
    }
    sums.push_back(sum.value());
  }
  return sums;
}

std::vector<double> ReferenceOfProducts(std::span<const float> a, std::span<const float> b,
                                        const MatMulShape& shape, Terms terms) {
  std::vector<double> sums;
  for (uint64_t output = 0; output < shape.rows * shape.columns; ++output) {
    ReferenceSum sum;
    for (uint64_t i = 0; i < shape.depth; ++i) {
      const float x = a[output / shape.columns * shape.depth + i];
      const float y = b[i * shape.columns + output % shape.columns];
      sum.Add(TermOf(static_cast<double>(x) * static_cast<double>(y), terms));
    }
    sums.push_back(sum.value());
  }
  return sums;
}

std::vector<double> Reference(const SumItem& item, std::span<const float> a,
                              std::span<const float> b, Terms terms) {
  return item.products ? ReferenceOfProducts(a, b, *item.products, terms)
                       : ReferenceOfAxis(a, item.axis, terms);
}

std::vector<Accumulated> Emulate(const SumItem& item, std::span<const float> a,
                                 std::span<const float> b,
                                 std::span<const AccumulationOptions> options) {
  if (item.products) {
    const MatMulShape& shape = *item.products;
    if (shape.rows * shape.columns != 1) return MatMul(a, b, shape, options);
    return item.other.empty() ? SumOfSquares(a, options) : Dot(a, b, options);
  }
  const bool whole = item.axis.outer * item.axis.inner == 1;
  return whole ? Sum(a, options) : SumAxis(a, item.axis, options);
}

double L2Norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;  // magnitudes are below 2^400
  return std::sqrt(sum);
}

// The L2 norm of the difference; nan if the reference is not finite, infinite if only the result.
double Difference(std::span<const double> reference, std::span<const double> result) {
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(reference[i])) return std::numeric_limits<double>::quiet_NaN();
    const double d = std::isfinite(result[i]) ? result[i] - reference[i] : HUGE_VAL;
    sum += d * d;
  }
  return std::sqrt(sum);
}

double Ratio(double difference, double norm) { return difference == 0 ? 0 : difference / norm; }

double MaxError(std::span<const double> reference, std::span<const double> result) {
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = std::fabs(result[i] - reference[i]);
    if (std::isnan(d)) return d;
    largest = std::max(largest, d);
  }
  return largest;
}

std::vector<float> Scaled(std::span<const float> values, float scale) {
  std::vector<float> scaled(values.begin(), values.end());
  for (float& value : scaled) value *= scale;
  return scaled;
}

void Divide(std::vector<double>& values, double divisor) {
  for (double& value : values) value /= divisor;
}

// The float64 sums of inputs that were rounded to a precision.
std::vector<double> SumsOfInputs(const SumItem& item, std::span<const float> a,
                                 std::span<const float> b, const Precision& inputs,
                                 double divisor) {
  const std::vector<float> rounded = RoundInputs(a, inputs, {});
  const std::vector<float> other = item.other.empty() ? rounded : RoundInputs(b, inputs, {});
  std::vector<double> sums = Reference(item, rounded, other, Terms::kSigned);
  Divide(sums, divisor);
  return sums;
}

// Compares emulated sums, still scaled, with float64.
SumOutcome Compare(std::span<const double> reference, double magnitudes, Accumulated emulated,
                   double divisor) {
  std::vector<double> result(emulated.values.begin(), emulated.values.end());
  Divide(result, divisor);
  const double difference = Difference(reference, result);
  SumOutcome outcome;
  const bool scalar = result.size() == 1;
  outcome.reference = scalar ? reference.front() : L2Norm(reference);
  outcome.result = scalar ? result.front() : L2Norm(result);
  outcome.term_error = Ratio(difference, magnitudes);
  outcome.relative_error = Ratio(difference, L2Norm(reference));
  outcome.max_error = MaxError(reference, result);
  outcome.outputs = result.size();
  outcome.counts = emulated.counts;
  return outcome;
}

}  // namespace

std::vector<SumOutcome> Evaluate(const SumItem& item, std::span<const SumRun> runs, float scale,
                                 uint64_t seed) {
  const RandomStream random = {
      seed, StreamOf(item.tensor + item.other + item.reduction, item.step, item.micro)};
  std::vector<AccumulationOptions> options;
  for (const SumRun& run : runs) options.push_back(OptionsOf(run, item.operation, random));
  const std::vector<double> reference = Reference(item, item.a, item.b, Terms::kSigned);
  const double magnitudes = L2Norm(Reference(item, item.a, item.b, Terms::kMagnitudes));
  const std::vector<float> a = Scaled(item.a, scale), b = Scaled(item.b, scale);
  const double factor = static_cast<double>(scale);
  const double divisor = item.products ? factor * factor : factor;
  std::vector<Accumulated> emulated = Emulate(item, a, b, options);
  std::vector<SumOutcome> outcomes;
  for (size_t r = 0; r < runs.size(); ++r) {
    outcomes.push_back(Compare(reference, magnitudes, std::move(emulated[r]), divisor));
    const auto same = std::ranges::find(options, options[r].inputs, &AccumulationOptions::inputs);
    const size_t first = static_cast<size_t>(same - options.begin());
    if (first < r) {
      outcomes[r].input_error = outcomes[first].input_error;
      continue;
    }
    const std::vector<double> sums = SumsOfInputs(item, a, b, options[r].inputs, divisor);
    outcomes[r].input_error = Ratio(Difference(reference, sums), magnitudes);
  }
  return outcomes;
}

}  // namespace dlsim::sim
