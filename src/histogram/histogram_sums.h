// SPDX-License-Identifier: Apache-2.0
// What is counted before it becomes a histogram, and what counters share.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/histogram.h"

namespace dlsim {

// What is counted of an array: all exact, so that sums of its pieces merge in any order.
struct HistogramSums {
  struct Bin {
    uint32_t bin = 0;
    uint64_t count = 0;
    uint64_t significands = 0;
    uint128_t squares = 0;  // of significands
  };
  struct OfSign {
    uint32_t largest = 0;
    std::vector<Bin> bins;  // those that are not empty, ascending
  };

  uint64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  std::array<OfSign, 2> signs;  // indexed by Sign

  void Merge(const HistogramSums& other);

  // Returns the most bytes that the sums of this number of elements take.
  static uint64_t MostBytes(uint64_t elements, const HistogramEdges& edges) {
    const uint64_t bins = 2 * uint64_t{edges.bin_count()};
    return sizeof(HistogramSums) + sizeof(Bin) * (elements < bins ? elements : bins);
  }

  // `edges` are those that it was counted with.
  Histogram ToHistogram(const HistogramEdges& edges) const;
};

// The way to what is private in histogram.h.
struct HistogramInternals {
  static const CountingPlan& PlanOf(const HistogramEdges& edges) { return *edges.plan_; }
  static HistogramSums TakeSums(HistogramCounter& counter);
  static void AddReference(HistogramCounter& counter, std::span<const float> values);
};

// Returns what counters of these edges share.
inline const CountingPlan& PlanOf(const HistogramEdges& edges) {
  return HistogramInternals::PlanOf(edges);
}

// As HistogramCounter::Take, exact.
inline HistogramSums TakeSums(HistogramCounter& counter) {
  return HistogramInternals::TakeSums(counter);
}

// As HistogramCounter::Add value by value: the definition that its kernels must equal.
inline void AddReference(HistogramCounter& counter, std::span<const float> values) {
  HistogramInternals::AddReference(counter, values);
}

}  // namespace dlsim
