// SPDX-License-Identifier: Apache-2.0
// What reductions do to the gradients of a trace, against float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "sim/studies/rank_gradients.h"
#include "sim/studies/rank_sum.h"

namespace dlsim::sim {

// What may become infinite, of all elements and whatever the order of additions.
enum class OverflowIn : uint8_t { kNoOrder, kSomeOrders, kEveryOrder };

constexpr auto EnumNames(OverflowIn) {
  return std::to_array<EnumName<OverflowIn>>({{OverflowIn::kNoOrder, "no order"},
                                              {OverflowIn::kSomeOrders, "some orders"},
                                              {OverflowIn::kEveryOrder, "every order"}});
}

struct ReductionOptions {
  size_t ranks = 64;        // 2 to kMaxRanks
  uint64_t elements = 256;  // of each tensor at each step
  std::string origin = {};  // a sentence on where the number of ranks comes from, or empty
};

// Sums over elements of squares: of the mean in float64, and of differences from it.
struct SquareSums {
  double reference = 0;  // the means themselves
  double error = 0;      // of the result in the order of the ranks
  double additions = 0;  // of that result and the mean of what was sent
  double low = 0;        // of each element in its best order
  double high = 0;       // and in its worst
  double certain = 0;    // of the bound that holds for any order
  double noise = 0;      // variance of the mean over ranks, as the recorded ones tell it

  void Add(const SquareSums& other, double weight);
  double Relative(double SquareSums::*sum) const {
    return this->*sum == 0 ? 0 : this->*sum / reference;
  }
};

// One reduction of one tensor at one step.
struct TensorReduction {
  std::vector<SquareSums> by_ranks;  // as RankCounts; bounds and noise only of the last
  uint64_t lost = 0;                 // elements that are off by more than half of their mean
  uint64_t overflowed = 0;           // elements that are not finite in some order
  double own_peak = 0, sum_peak = 0, most_peak = 0;  // largest of a rank, sum, partial sum at most
};

// One tensor at one step: sums over `sampled` of its elements.
struct TensorAtStep {
  int64_t step = 0;
  std::string name;
  uint64_t elements = 0, sampled = 0, nonfinite = 0;  // the last: ranks left out
  std::vector<TensorReduction> reductions;
};

// The error of a tensor by one reduction: square root of the mean over steps, and the worst.
struct TensorError {
  double squares = 0, worst = 0;
  uint64_t steps = 0, lost = 0;
  int64_t worst_step = -1;

  double mean() const { return steps == 0 ? 0 : std::sqrt(squares / static_cast<double>(steps)); }
};

struct TensorErrors {
  std::string name;
  std::vector<TensorError> reductions;
};

// One reduction over the whole trace. Errors are relative, of the whole gradient: L2 norms, square
// root of the mean over steps.
struct ReductionResult {
  Reduction reduction;
  std::vector<double> errors, additions;  // as RankCounts
  double low = 0, high = 0, certain = 0;  // for the most ranks
  double lost = 0, overflowed = 0;  // shares of the elements looked at; errors are of the others
  OverflowIn overflow = OverflowIn::kNoOrder;
  double safe_scale = 0;           // the largest power of two at which no order overflows
  std::optional<double> exponent;  // of the ranks, with which the error of additions grows

  bool has_error() const { return overflowed < 1; }
  double error() const { return errors.back(); }
};

struct ReductionStudy {
  RankGroups groups;
  ReductionOptions options;
  double noise = 0;        // sampling error of the mean over ranks by itself, relative like errors
  uint64_t sampled = 0;    // elements that were looked at, over tensors and steps
  uint64_t nonfinite = 0;  // gradients of a tensor and rank that are not finite, and left out
  std::vector<ReductionResult> reductions;
  std::vector<TensorErrors> tensors;
};

// Returns 2, 4, 8, ... below `ranks`, and `ranks`.
std::vector<size_t> RankCounts(size_t ranks);

// Runs the study, one group in memory at a time. on_tensor is called in the order of the trace.
ReductionStudy RunReductionStudy(const TraceReader& trace, const std::vector<Reduction>& reductions,
                                 const ReductionOptions& options,
                                 const std::function<void(const TensorAtStep&)>& on_tensor,
                                 const std::function<void(size_t)>& on_step);

}  // namespace dlsim::sim
