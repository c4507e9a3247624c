// SPDX-License-Identifier: Apache-2.0
// Tunes traces of a test, and makes random policies that must not beat the result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "dlsim/sim/tune.h"
#include "sim/advice/tuning.h"

namespace dlsim::sim {

inline TuneResult TuneTrace(const TraceReader& trace, const std::vector<std::string>& formats,
                            const std::string& policy = "cerebras-2.10") {
  TuneRequest request;
  request.formats = formats;
  request.policy = policy;
  const StepSource steps = WithoutLosses(TraceSteps(trace));
  return Tune(steps, request, AdviseOn(steps, request));
}

// Parameters from all over the place: half of the scales are powers of two, and the order of floor,
// start and ceiling is often absurd.
class RandomParameters {
 public:
  explicit RandomParameters(uint64_t seed) : random_(seed) {}

  ScaleParameters Next() {
    ScaleParameters parameters;
    parameters.init = Scale(Chance(2) ? -20 : 0, 32);
    parameters.min = Scale(-14, Chance(2) ? -5 : 16);
    parameters.max = Chance(2) ? Scale(-14, 32) : Scale(10, 40);
    const auto interval = static_cast<int64_t>(std::exp2(Between(0, 12.3)));
    parameters.interval = Chance(2) ? 1 + static_cast<int64_t>(random_() % 5000) : interval;
    if (!Chance(3) && parameters.min > parameters.max) {
      std::swap(parameters.min, parameters.max);
    }
    return parameters;
  }

 private:
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  double Between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() % 1'000'003) / 1'000'003;
  }
  double Scale(double low, double high) {
    const double exponent = Between(low, high);
    return std::exp2(Chance(2) ? std::round(exponent) : exponent);
  }

  std::mt19937_64 random_;
};

// Returns the gradients lost, on average, by `count` random policies of a family.
inline std::vector<double> RandomLosses(const TraceReader& trace, const PolicyFamily& family,
                                        size_t count, uint64_t seed) {
  RandomParameters parameters(seed);
  std::vector<ReplayRun> runs;
  while (runs.size() < count) {
    std::optional<ConfiguredScaler> configured = family.Make(parameters.Next());
    if (!configured) continue;
    runs.push_back({.format = family.format,
                    .policy = std::string(family.policy->name),
                    .conversion = {ParseFormat(family.format).format},
                    .rules = family.policy->rules,
                    .scaler = std::move(configured->scaler)});
  }
  std::vector<double> losses;
  for (const ReplayResult& result : Replay(TraceSteps(trace), std::move(runs))) {
    losses.push_back(
        ScoreOf(result, trace.step_count(), {ParseFormat(family.format).format}).mean_loss);
  }
  return losses;
}

}  // namespace dlsim::sim
