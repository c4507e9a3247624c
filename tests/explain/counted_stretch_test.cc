// SPDX-License-Identifier: Apache-2.0
// The ways through a stretch of a known number of steps, against a trial of every placement of its
// overflows, for all policies that look at no gradients.
#include "sim/explain/counted_stretch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/policies.h"

namespace dlsim::sim {
namespace {

// A policy that grows after two to six clean steps; none if it looks at gradients.
std::optional<LossScaler> QuickToGrow(const PolicyInfo& policy, std::mt19937& random) {
  ParameterMap parameters;
  for (const ParameterInfo& parameter : policy.parameters) {
    const std::string name(parameter.name);
    if (parameter.role == ParameterRole::kInterval) {
      parameters[name] = std::to_string(2 + random() % 5);
    } else if (parameter.role == ParameterRole::kOverflows && random() % 2 == 0) {
      parameters[name] = "2";
    }
  }
  std::optional<LossScaler> scaler;
  try {
    scaler = policy.make(parameters, "fp16").scaler;
  } catch (const PolicyRefusal&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  const bool looks = scaler->uses_absmax() || scaler->looks_ahead() || scaler->histogram_edge();
  return looks ? std::nullopt : scaler;
}

// Takes the stretch with overflows at the steps whose bits are set.
bool Takes(const Stretch& stretch, uint32_t overflows, Branch& branch) {
  const int64_t steps = *stretch.steps;
  for (int64_t at = 0; at < steps; ++at) {
    const bool overflow = (overflows >> at & 1) != 0;
    if (at == steps - 1 && overflow && stretch.last == LastStep::kApplied) return false;
    if (at == steps - 1 && !overflow && stretch.last == LastStep::kSkipped) return false;
    const size_t taken = branch.way.overflow_at.size();
    const bool fits = overflow ? TakeOverflow(stretch.overflows[taken], at, false, branch)
                               : TakeStep(false, branch);
    if (!fits) return false;
  }
  return Fits(stretch.next, branch.scaler.scale());
}

std::vector<Branch> TryAll(const Stretch& stretch, const std::vector<Branch>& branches) {
  std::vector<Branch> ends;
  for (const Branch& branch : branches) {
    const auto first = static_cast<std::ptrdiff_t>(ends.size());
    for (uint32_t overflows = 0; overflows < uint32_t{1} << *stretch.steps; ++overflows) {
      if (std::cmp_not_equal(std::popcount(overflows), stretch.overflows.size())) continue;
      Branch end = branch;
      if (Takes(stretch, overflows, end)) ends.push_back(end);
    }
    std::sort(ends.begin() + first, ends.end(), [](const Branch& a, const Branch& b) {
      return a.way.overflow_at < b.way.overflow_at;
    });
  }
  RemoveTwins(ends);
  return ends;
}

// One or two ways that differ, some steps after the start.
std::vector<Branch> SomeWays(const LossScaler& scaler, std::mt19937& random) {
  std::vector<Branch> ways = {{.scaler = scaler}};
  for (auto clean = random() % 4; clean > 0; --clean) TakeStep(false, ways[0]);
  if (random() % 2 == 0) ways.push_back(ways[0]);
  TakeStep(random() % 2 == 0, ways.back());
  RemoveTwins(ways);
  return ways;
}

std::string Told(const std::vector<Branch>& branches) {
  std::string text, state;
  for (const Branch& branch : branches) {
    for (const int64_t at : branch.way.overflow_at) text += std::to_string(at) + ' ';
    WriteState(branch, state);
    text += state + '\n';
  }
  return text;
}

TEST(CountedStretch, HasTheWaysThatATrialOfAllFinds) {
  std::mt19937 random(5);
  size_t ways = 0;
  for (const PolicyInfo& policy : Policies()) {
    for (int round = 0; round < 60; ++round) {
      const std::optional<LossScaler> scaler = QuickToGrow(policy, random);
      const int64_t steps = 2 + static_cast<int64_t>(random() % 8);
      const size_t overflows = 1 + random() % std::min<size_t>(3, static_cast<size_t>(steps) - 1);
      if (!scaler) continue;
      Stretch stretch = {.steps = steps, .last = static_cast<LastStep>(random() % 3)};
      stretch.overflows.resize(overflows);
      const std::vector<Branch> start = SomeWays(*scaler, random);
      std::vector<Branch> expected = TryAll(stretch, start);
      if (!expected.empty() && round % 2 == 0) {
        const double scale = expected[random() % expected.size()].scaler.scale();
        stretch.next = PrintedNumber{scale, scale, scale};
        expected = TryAll(stretch, start);
      }
      Work work = {.most = 1'000'000};
      std::vector<Branch> found = AdvanceCounted(stretch, start, work);
      RemoveTwins(found);
      ASSERT_EQ(Told(found), Told(expected)) << policy.name << ", round " << round;
      ways += found.size();
    }
  }
  EXPECT_GT(ways, 2000u);
}

}  // namespace
}  // namespace dlsim::sim
