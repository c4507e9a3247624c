// SPDX-License-Identifier: Apache-2.0
// Softmax of accumulate.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dlsim/accumulate.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/sums/accumulators.h"
#include "src/sums/sum_terms.h"

namespace dlsim {
namespace {

// Rounds the steps of a softmax to the precision of terms. For one thread.
class StepRounder {
 public:
  explicit StepRounder(const AccumulationOptions& options)
      : rounder_(options.terms.kind == Precision::Kind::kExact ? kFloat32Precision : options.terms),
        random_(options.random, kTermStream) {}

  float operator()(double value, uint64_t index) {
    return rounder_.Round(value, index, random_).value;
  }

 private:
  AnyRounder rounder_;
  RandomSequence random_;
};

// Replaces a row by exp(x - max).
void Exponentials(std::span<float> row, uint64_t first_index, const AccumulationOptions& options) {
  StepRounder round(options);
  const double largest = static_cast<double>(*std::ranges::max_element(row));
  for (size_t i = 0; i < row.size(); ++i) {
    const uint64_t index = 3 * (first_index + i);
    const float difference = round(OddSum(static_cast<double>(row[i]), -largest), index);
    row[i] = round(std::exp(static_cast<double>(difference)), index + 1);
  }
}

void Divide(std::span<float> row, float sum, uint64_t first_index,
            const AccumulationOptions& options) {
  StepRounder round(options);
  for (size_t i = 0; i < row.size(); ++i) {
    const double quotient = static_cast<double>(row[i]) / static_cast<double>(sum);
    row[i] = round(quotient, 3 * (first_index + i) + 2);
  }
}

}  // namespace

Accumulated Softmax(std::span<const float> values, uint64_t columns,
                    const AccumulationOptions& options) {
  DLSIM_CHECK(columns > 0 && values.size() % columns == 0);
  Accumulated result = {RoundInputs(values, options.inputs, options.random), {}};
  const uint64_t rows = values.size() / columns;
  const auto row = [&](uint64_t r) {
    return std::span(result.values).subspan(r * columns, columns);
  };
  ParallelFor(rows, [&](size_t r) { Exponentials(row(r), r * columns, options); });
  AccumulationOptions sums = options;
  sums.inputs = kFloat32Precision;  // they have been rounded
  const Accumulated totals =
      SumAxis(result.values, {rows, columns, 1}, std::span(&sums, 1)).front();
  ParallelFor(rows, [&](size_t r) { Divide(row(r), totals.values[r], r * columns, options); });
  result.counts = totals.counts;
  return result;
}

}  // namespace dlsim
