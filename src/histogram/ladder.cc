// SPDX-License-Identifier: Apache-2.0
#include "dlsim/ladder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "src/base/parallel.h"
#include "src/histogram/histogram_question.h"

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

namespace {

// How many elements are looked at in the time in which the thresholds of one scale are found.
constexpr uint64_t kLooksPerScale = 500;

std::vector<Conversion> ConversionsOf(const Ladder& ladder) {
  std::vector<Conversion> conversions;
  for (const NamedFormat& format : ladder.formats) {
    for (const Rounding rounding : ladder.roundings) {
      for (const Subnormals subnormals : ladder.subnormals) {
        for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
          conversions.push_back({format.format, rounding, overflow, subnormals});
        }
      }
    }
  }
  return conversions;
}

// Each once: most scales have those of others, and sorting all of them would take one thread.
std::vector<uint32_t> ThresholdsOf(const Conversion& conversion, std::span<const float> scales) {
  std::vector<uint32_t> all;
  std::optional<HistogramQuestion> last;
  for (const float scale : scales) {
    last = HistogramQuestion(conversion, scale, last ? &*last : nullptr);
    const std::vector<uint32_t> thresholds = last->ThresholdBits();
    all.insert(all.end(), thresholds.begin(), thresholds.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

HistogramEdges EdgesOf(const Ladder& ladder) {
  const std::vector<Conversion> conversions = ConversionsOf(ladder);
  std::vector<std::vector<uint32_t>> thresholds(conversions.size());
  ParallelFor(
      conversions.size(),
      [&](size_t c) { thresholds[c] = ThresholdsOf(conversions[c], ladder.scales); },
      conversions.size() * ladder.scales.size() * kLooksPerScale);
  std::vector<uint32_t> edges;
  for (const std::vector<uint32_t>& of_one : thresholds) {
    edges.insert(edges.end(), of_one.begin(), of_one.end());
  }
  return HistogramEdges(std::move(edges));
}

}  // namespace dlsim
