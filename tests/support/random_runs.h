// SPDX-License-Identifier: Apache-2.0
// Random simulations over the whole registry, all formats and conversions.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

class RandomRuns {
 public:
  explicit RandomRuns(uint32_t seed) : random_(seed) {}

  std::vector<ReplayRun> Make(size_t count) {
    std::vector<ReplayRun> runs;
    while (runs.size() < count) runs.push_back(MakeOne());
    return runs;
  }

 private:
  int Draw(int from, int to) { return std::uniform_int_distribution(from, to)(random_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }

  template <class T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Draw(0, static_cast<int>(values.size()) - 1)];
  }

  std::string Value() {
    switch (Draw(0, 6)) {
      case 0:
        return std::to_string(Draw(1, 5));
      case 1:
        return "2^" + std::to_string(Draw(0, 40));
      case 2:
        return "2^-" + std::to_string(Draw(1, 24));
      case 3:
        return "0." + std::to_string(Draw(1, 99));
      case 4:
        return std::to_string(Draw(1, 90)) + "e" + std::to_string(Draw(-8, 12));
      case 5:
        return Pick({"true", "false"});
      default:
        return std::to_string(Draw(1, 40));
    }
  }

  // Values that the policy refuses are drawn again.
  LossScaler MakeScaler(const PolicyInfo& policy, const std::string& format) {
    for (int attempt = 0; attempt < 50; ++attempt) {
      ParameterMap parameters;
      for (const ParameterInfo& parameter : policy.parameters) {
        if (OneIn(3)) parameters.emplace(parameter.name, Value());
      }
      try {
        return policy.make(parameters, format).scaler;
      } catch (const PolicyRefusal&) {
      } catch (const Error&) {
      }
    }
    return policy.make({}, format).scaler;
  }

  std::string FormatName() {
    if (OneIn(4)) return "e" + std::to_string(Draw(2, 8)) + "m" + std::to_string(Draw(1, 22));
    return std::string(kFormats[static_cast<size_t>(Draw(0, int{kFormats.size()} - 1))].name);
  }

  ReplayRun MakeOne() {
    const NamedFormat format = ParseFormat(FormatName());
    const auto policies = Policies();
    const PolicyInfo& policy =
        policies[static_cast<size_t>(Draw(0, static_cast<int>(policies.size()) - 1))];
    ReplayRun run = {.format = format.name,
                     .policy = std::string(policy.name),
                     .conversion = {format.format},
                     .rules = policy.rules,
                     .scaler = MakeScaler(policy, format.name)};
    if (OneIn(2)) run.conversion.rounding = static_cast<Rounding>(Draw(0, 5));
    if (OneIn(4)) run.conversion.overflow = Overflow::kSaturate;
    if (OneIn(4)) run.conversion.subnormals = Subnormals::kFlushToZero;
    if (OneIn(3)) run.rules.finite_test = static_cast<FiniteTest>(Draw(0, 4));
    if (OneIn(8)) run.clipping.max_norm = 1.0;
    if (OneIn(16)) run.resume = Resume{Draw(0, 20), OneIn(2) ? Kept::kScale : Kept::kNothing};
    return run;
  }

  std::mt19937 random_;
};

}  // namespace dlsim::sim
