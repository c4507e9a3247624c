// SPDX-License-Identifier: Apache-2.0
// Measures single elements on the host in the ways of the device and compares them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "gpu/measure/measure_element.cuh"

namespace dlsim::gpu {

inline bool SameDigits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

inline bool Same(const LaneStats& a, const LaneStats& b) {
  bool same = SameDigits(double{a.absmax}, b.absmax);
  ForEachLaneCounter([&](uint32_t, auto of_lane, auto) { same &= a.*of_lane == b.*of_lane; });
  ForEachLaneSum([&](uint32_t, auto of_lane, auto) { same &= SameDigits(a.*of_lane, b.*of_lane); });
  return same;
}

// What became of an element that was measured in a short form and by the definition.
enum class Outcome { kDiffers, kLeftToDefinition, kShort };

template <bool kFlushes>
Outcome MeasureOne(const KernelQuestion& question, float value) {
  const Scaling scaling = MakeScaling(question.scale);
  const Scaling sizes = MakeScaling(std::fabs(scaling.scale));
  PlainInputs inputs;
  PlainResults results;
  results.Add<kFlushes>(question.floats, sizes, value, inputs.Add(value));
  if (!question.floats.applies || !WasPlain(inputs, question.floats, sizes)) {
    return Outcome::kLeftToDefinition;
  }
  LaneStats expected;
  CountElement<Rounding::kNearestEven>(question.spec, scaling, value, 0, expected);
  return Same(FinishPlain(inputs, results, 1), expected) ? Outcome::kShort : Outcome::kDiffers;
}

inline Outcome MeasureOne(const KernelQuestion& question, float value) {
  return question.floats.flush_below > 0 ? MeasureOne<true>(question, value)
                                         : MeasureOne<false>(question, value);
}

inline KernelQuestion QuestionOf(const Conversion& conversion, float scale) {
  DeviceQuestion question;
  question.conversion = conversion;
  question.scale = scale;
  return MakeKernelQuestion(question, 0);
}

// The same for CountByFloats.
template <Rounding kRounding>
Outcome MeasureOneByFloats(const KernelQuestion& question, float value) {
  const Scaling scaling = MakeScaling(question.scale);
  LaneStats stats, expected;
  CountByFloats<kRounding>(question.floats, scaling, value, stats);
  if (!question.floats.applies || !WasRightByFloats(question.floats, scaling, stats)) {
    return Outcome::kLeftToDefinition;
  }
  CountElement<kRounding>(question.spec, scaling, value, 0, expected);
  return Same(stats, expected) ? Outcome::kShort : Outcome::kDiffers;
}

inline Outcome MeasureOneByFloats(const KernelQuestion& question, float value) {
  switch (question.rounding) {
    case Rounding::kNearestEven:
      return MeasureOneByFloats<Rounding::kNearestEven>(question, value);
    case Rounding::kTowardZero:
      return MeasureOneByFloats<Rounding::kTowardZero>(question, value);
    case Rounding::kNearestAway:
      return MeasureOneByFloats<Rounding::kNearestAway>(question, value);
    case Rounding::kTowardPositive:
      return MeasureOneByFloats<Rounding::kTowardPositive>(question, value);
    case Rounding::kTowardNegative:
      return MeasureOneByFloats<Rounding::kTowardNegative>(question, value);
    case Rounding::kStochastic:
      return Outcome::kLeftToDefinition;
  }
  return Outcome::kDiffers;
}

}  // namespace dlsim::gpu
