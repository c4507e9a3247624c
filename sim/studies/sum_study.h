// SPDX-License-Identifier: Apache-2.0
// Runs the sums of a trace, step by step, and keeps what each tensor met at worst.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "sim/studies/reductions.h"
#include "sim/studies/sum_item.h"
#include "sim/studies/sum_runs.h"

namespace dlsim::sim {

// The sums of one tensor (or pair) by one run, over all steps.
struct SumSummary {
  uint64_t sums = 0;          // items: steps, or micro-steps
  uint64_t nonfinite = 0;     // of them, those whose reference is not finite: they have no error
  uint64_t overflowed = 0;    // and those of a finite reference whose result is not finite
  double worst_error = 0;     // largest term_error of an item
  double input_error = 0;     // that of the same item by rounding its inputs alone
  double error_sum = 0;       // of the items' term_error where the result is finite
  double relative_error = 0;  // largest of an item
  double max_error = 0;       // largest absolute difference of an element
  int64_t worst_step = -1;    // of the worst item; -1 if none has an error
  int64_t worst_micro = -1;   // -1: the step has none, or the sum is over them
  AdditionCounts counts;      // over all items

  double mean_error() const {
    const uint64_t items = sums - nonfinite - overflowed;
    return items == 0 ? 0 : error_sum / static_cast<double>(items);
  }
};

// One tensor (or pair) and reduction; a summary per run.
struct SumResult {
  std::string reduction, tensor, other;
  Operation operation = Operation::kReduction;
  std::vector<SumSummary> runs;
};

struct SumStudyOptions {
  float scale = 1.0f;  // multiplies inputs before they are rounded
  uint64_t seed = 0;

  // Called for each item with the outcomes of the runs.
  std::function<void(const SumItem&, std::span<const SumOutcome>)> on_item;

  // Called with the number of steps that are done.
  std::function<void(size_t)> on_step;
};

// Runs a plan. Holds the values of one tensor at a time, or of two in a product, or of one over the
// micro-steps of a step. Results are in the order in which they come first.
std::vector<SumResult> RunSumStudy(const TraceReader& trace, const ReductionPlan& plan,
                                   std::span<const SumRun> runs, const SumStudyOptions& options);

}  // namespace dlsim::sim
