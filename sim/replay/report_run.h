// SPDX-License-Identifier: Apache-2.0
// The part of a replay's report that is about one run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Returns why steps were not finite, the warm-up, clipping, events and the `top`
// worst tensors; empty if the run has no steps.
std::string RunSection(const SimulationRun& run, std::span<const OptimizerGroup> optimizers,
                       size_t top);

// Returns a number as text, or its range where a profile leaves one: "12..15". A share is a
// percentage: "0.12..0.15 %".
std::string TextWithin(uint64_t count, const Bracket<uint64_t>& range);
std::string TextWithin(double share, const Bracket<double>& range);
std::string TextWithin(float magnitude, const Bracket<float>& range);

template <auto kOf>
std::string CounterText(const TensorStats& stats, const CounterBrackets& brackets) {
  return TextWithin(std::invoke(kOf, stats), brackets.RangeOf<kOf>(stats));
}

// The longest row of skipped steps that no lower scale would have made finite.
struct HopelessRow {
  int64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;
  double first_scale = 0, last_scale = 0;  // used by its first step, and after its last
  std::string tensor;                      // to blame for the first
};

// Returns nothing if no such step was skipped.
std::optional<HopelessRow> LongestHopelessRow(const ReplayResult& result);

}  // namespace dlsim::sim
