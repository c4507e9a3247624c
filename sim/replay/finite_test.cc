// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/finite_test.h"

#include <bit>
#include <cmath>
#include <limits>

namespace dlsim::sim {

FiniteFindings Judge(TensorSpan tensors, const StepAnswer& answers,
                     std::span<const size_t> checked) {
  FiniteFindings findings;
  float worst_overflow = 0;
  double largest = -1;
  for (const size_t t : checked) {
    const TensorAnswer& answer = answers[t];
    const TensorStats& total = answer.total;
    const TensorAnswer::Rest& rest = answer.rest();
    const std::string* name = &tensors[t].name;
    const double squares = rest.converted_squares.value_or(answer.sum_of_squares);
    findings.sum_of_squares += squares;
    findings.scaled_sum_of_squares += rest.detail.scaled_sum_of_squares;
    if (total.nonfinite_outputs > 0) {
      findings.nonfinite_element = true;
    } else if (!rest.parts.empty()) {
      findings.nonfinite_scaled_sum |= !answer.scaled_sum_finite;
      findings.nonfinite_sum |= !answer.unscaled_finite;
    } else {
      findings.nonfinite_unscaled |= !answer.unscaled_finite;
    }
    const bool sum_overflows = !(std::fabs(rest.detail.scaled_sum) < kFloat32Overflow);
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
  const bool unscaled_finite =
      !findings.nonfinite_element && !findings.nonfinite_sum && !findings.nonfinite_unscaled;
  switch (test) {
    case FiniteTest::kElementwise:
      return elements_finite;
    case FiniteTest::kUnscaledElementwise:
      return unscaled_finite;
    case FiniteTest::kGlobalNorm:
      return unscaled_finite && findings.sum_of_squares < kFloat32Overflow;  // not for NaN
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

bool NeedsDetail(FiniteTest test, const Format& format) {
  // With fewer than 2^48 elements.
  const double largest = MaxFinite(format);
  if (test == FiniteTest::kScaledNorm) return largest * largest * 0x1p48 >= kFloat32Overflow;
  if (test == FiniteTest::kSum) return largest * 0x1p48 >= kFloat32Overflow;
  return false;
}

namespace {

// Scaling and rounding are monotone, and so are the bits of positive float32 values.
template <typename Fails>
float LargestWithout(const Fails& fails) {
  uint32_t low = 0, high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (fails(std::bit_cast<float>(middle))) {
      high = middle - 1;
    } else {
      low = middle;
    }
  }
  return std::bit_cast<float>(low);
}

}  // namespace

ScaledMagnitude ScaleMagnitude(const Conversion& conversion, float magnitude, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  // The largest finite value and a unit of its last place: rounding goes no further than that.
  const double most = MaxFinite(conversion.format);
  const double beyond = most + std::ldexp(1.0, std::ilogb(most) - conversion.format.mantissa_bits);
  ScaledMagnitude scaled;
  for (const float value : {magnitude * scale, -magnitude * scale}) {
    const EncodeResult result =
        Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value), ~0u);
    const CodeClass output = Classify(spec, result.code);
    const bool nonfinite = output == CodeClass::kInfinity || output == CodeClass::kNan;
    scaled.nonfinite |= nonfinite;
    scaled.overflows |= nonfinite || result.overflows || !(std::fabs(value) < beyond);
  }
  return scaled;
}

float LargestScale(const Conversion& conversion, float magnitude) {
  return LargestWithout(
      [&](float scale) { return ScaleMagnitude(conversion, magnitude, scale).overflows; });
}

float LargestFiniteScale(const Conversion& conversion, float magnitude) {
  return LargestWithout(
      [&](float scale) { return ScaleMagnitude(conversion, magnitude, scale).nonfinite; });
}

float LargestMagnitude(const Conversion& conversion, float scale) {
  return LargestWithout(
      [&](float magnitude) { return ScaleMagnitude(conversion, magnitude, scale).overflows; });
}

}  // namespace dlsim::sim
