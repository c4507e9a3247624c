// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/finite_test.h"

#include <algorithm>
#include <cmath>

namespace dlsim::sim {
namespace {

// What of an answer the tests look at.
struct Seen {
  double squares = 0;
  bool scaled_sum_finite = true;
  const GradientDetail* detail = nullptr;
};

Seen Look(const TensorAnswer& answer, Reading reading) {
  if (reading == Reading::kLikely || !answer.bounds) {
    return {answer.effective_sum_of_squares, answer.scaled_sum_finite, &answer.detail};
  }
  const GradientBound& bound =
      reading == Reading::kSmallest ? answer.bounds->low : answer.bounds->high;
  return {bound.effective_sum_of_squares, bound.scaled_sum_finite, &bound.detail};
}

}  // namespace

FiniteFindings Judge(const JudgedStep& judged, std::span<const size_t> tensors, Reading reading) {
  FiniteFindings findings;
  float worst_overflow = 0;
  double largest = -1;
  for (const size_t t : tensors) {
    const TensorStats& total = judged.totals[t];
    const TensorAnswer& answer = judged.answers[t];
    const Seen seen = Look(answer, reading);
    const double squares = seen.squares;
    const std::string* name = &judged.step.tensors[t].name;
    findings.sum_of_squares += squares;
    findings.scaled_sum_of_squares += seen.detail->scaled_sum_of_squares;
    if (total.nonfinite_outputs > 0) {
      findings.nonfinite_element = true;
    } else if (answer.parts.size() > 1) {
      findings.nonfinite_scaled_sum |= !seen.scaled_sum_finite;
      findings.nonfinite_sum |= !std::isfinite(squares);
    } else {
      findings.nonfinite_unscaled |= !std::isfinite(squares);
    }
    const bool sum_overflows = !(std::fabs(seen.detail->scaled_sum) < kFloat32Overflow);
    if (sum_overflows && findings.sum_tensor == nullptr) findings.sum_tensor = name;
    if (total.nonfinite() > 0 && findings.input_tensor == nullptr) findings.input_tensor = name;
    if (total.overflow > 0 && total.absmax > worst_overflow) {
      worst_overflow = total.absmax;
      findings.overflow_tensor = name;
    }
    if (squares > largest) {
      largest = squares;
      findings.largest_tensor = name;
    }
  }
  return findings;
}

bool IsFinite(FiniteTest test, const FiniteFindings& findings) {
  const bool elements_finite = !findings.nonfinite_element && !findings.nonfinite_scaled_sum;
  switch (test) {
    case FiniteTest::kElementwise:
      return elements_finite;
    case FiniteTest::kUnscaledElementwise:
      return std::isfinite(findings.sum_of_squares);  // float64 holds the square of any float32
    case FiniteTest::kGlobalNorm:
      return findings.sum_of_squares < kFloat32Overflow;  // not for NaN
    case FiniteTest::kScaledNorm:
      return elements_finite && findings.scaled_sum_of_squares < kFloat32Overflow;
    case FiniteTest::kSum:
      return elements_finite && findings.sum_tensor == nullptr;
  }
  return false;
}

void Explain(FiniteTest test, const FiniteFindings& findings, ReplayStep& record) {
  if (record.finite) return;
  const std::string* tensor = findings.largest_tensor;
  record.lower_scale_helps = false;
  if (findings.input_tensor != nullptr) {
    record.cause = Cause::kInput;
    tensor = findings.input_tensor;
  } else if (findings.nonfinite_element) {
    record.cause = Cause::kOverflow;
    tensor = findings.overflow_tensor;
    record.lower_scale_helps = true;
  } else if (findings.nonfinite_scaled_sum || findings.nonfinite_sum) {
    record.cause = Cause::kAccumulation;
    record.lower_scale_helps = !findings.nonfinite_sum;
  } else if (findings.nonfinite_unscaled) {
    record.cause = Cause::kUnscaling;
  } else if (test == FiniteTest::kSum) {
    record.cause = Cause::kSum;
    tensor = findings.sum_tensor;
    record.lower_scale_helps = true;
  } else {
    record.cause = Cause::kNorm;
    record.lower_scale_helps = test == FiniteTest::kScaledNorm;
  }
  if (tensor != nullptr) record.cause_tensor = *tensor;
}

bool IsCertain(FiniteTest test, const JudgedStep& judged, std::span<const size_t> tensors) {
  const auto open = [&](size_t t) { return judged.answers[t].bounds != nullptr; };
  if (std::none_of(tensors.begin(), tensors.end(), open)) return true;
  ReplayStep smallest, largest;
  for (ReplayStep* record : {&smallest, &largest}) {
    const Reading reading = record == &smallest ? Reading::kSmallest : Reading::kLargest;
    const FiniteFindings findings = Judge(judged, tensors, reading);
    record->finite = IsFinite(test, findings);
    Explain(test, findings, *record);
  }
  return smallest.finite == largest.finite && smallest.cause == largest.cause &&
         smallest.lower_scale_helps == largest.lower_scale_helps;
}

bool NeedsDetail(FiniteTest test, const Format& format) {
  // With fewer than 2^48 elements.
  const double largest = MaxFinite(format);
  if (test == FiniteTest::kScaledNorm) return largest * largest * 0x1p48 >= kFloat32Overflow;
  if (test == FiniteTest::kSum) return largest * 0x1p48 >= kFloat32Overflow;
  return false;
}

}  // namespace dlsim::sim
