// SPDX-License-Identifier: Apache-2.0
#include "dlsim/ladder.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dlsim/histogram_question.h"

namespace dlsim {

Ladder DefaultLadder() {
  constexpr float kDocumentedMax = 2e15f, kDocumentedMin = 2e-14f;
  std::set<float> scales;
  for (int exponent = kLowestScaleExponent; exponent <= kHighestScaleExponent; ++exponent) {
    scales.insert(std::ldexp(1.0f, exponent));
  }
  for (float down = kDocumentedMax; down >= kDocumentedMin; down /= 2) scales.insert(down);
  for (float up = kDocumentedMin; up <= kDocumentedMax; up *= 2) scales.insert(up);
  std::vector<NamedFormat> formats;
  for (const std::string_view name : kDefaultFormats) formats.push_back(ParseFormat(name));
  return {formats,
          {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kNearestAway,
           Rounding::kTowardPositive, Rounding::kTowardNegative},
          {Subnormals::kKeep, Subnormals::kFlushToZero},
          {scales.begin(), scales.end()}};
}

HistogramEdges EdgesOf(const Ladder& ladder) {
  std::vector<uint32_t> edges;
  const auto add = [&](const Conversion& conversion) {
    for (const float scale : ladder.scales) {
      const std::vector<uint32_t> thresholds = HistogramQuestion(conversion, scale).ThresholdBits();
      edges.insert(edges.end(), thresholds.begin(), thresholds.end());
    }
  };
  for (const NamedFormat& format : ladder.formats) {
    for (const Rounding rounding : ladder.roundings) {
      for (const Subnormals subnormals : ladder.subnormals) {
        for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
          add({format.format, rounding, overflow, subnormals});
        }
      }
    }
  }
  return HistogramEdges(std::move(edges));
}

}  // namespace dlsim
