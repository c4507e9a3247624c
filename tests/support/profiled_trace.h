// SPDX-License-Identifier: Apache-2.0
// Traces and their profiles in memory, replayed alike.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/replay/profile_source.h"
#include "sim/replay/trace_source.h"
#include "tests/support/same_stats.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {

// The profile of a trace, made step by step.
class ProfiledTrace final : public GradientSource {
 public:
  ProfiledTrace(const TraceReader& trace, const HistogramEdges& edges,
                const ReplayOptions& options = {}, const std::string& tensors = "*")
      : edges_(edges), facts_(FactsOf(trace)) {
    const TraceSource source(trace, options.accumulate_steps);
    for (size_t i = 0; i < source.step_count(); ++i) {
      steps_.push_back(ProfileOf(source.LoadStep(i), edges, options.step));
      KeepTensors(tensors, steps_.back());
    }
  }

  const SourceFacts& facts() const override { return facts_; }
  size_t step_count() const override { return steps_.size(); }
  size_t parts() const { return steps_.front().histograms.size(); }
  const HistogramEdges* edges() const override { return &edges_; }
  std::unique_ptr<GradientStep> Load(size_t i, StepNeeds needs) const override {
    if (needs == StepNeeds::kTotals) return OpenTotals(TotalsOf(steps_[i]));
    return OpenProfileStep(steps_[i], edges_, questions_);
  }

 private:
  const HistogramEdges& edges_;
  SourceFacts facts_;
  std::vector<ProfileStep> steps_;
  mutable QuestionCache questions_;
};

inline const HistogramEdges& DefaultEdges() {
  static const HistogramEdges edges = EdgesOf(DefaultLadder());
  return edges;
}

// What a comparison has seen.
struct Compared {
  size_t steps = 0, uncertain = 0, inexact = 0;
};

template <class T>
bool IsWithin(T value, const Bracket<T>& bracket, double slack = 0) {
  const double v = static_cast<double>(value);
  return v >= static_cast<double>(bracket.low) * (1 - slack) &&
         v <= static_cast<double>(bracket.high) * (1 + slack);
}

// Sums differ by their order.
inline bool IsSameSum(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return !std::isfinite(a) && !std::isfinite(b);
  return std::fabs(a - b) <= 1e-12 * std::fabs(b);
}

// A scale may be NaN.
inline bool IsSameScale(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline void CompareStats(const TensorStats& got, const CounterBrackets& brackets,
                         const TensorStats& expected) {
  ForEachCounter([&](auto row) {
    SCOPED_TRACE(row.kRow.name);
    if constexpr (row.kHasBracket) {
      const auto want = expected.*row.kRow.of;
      constexpr bool kIsSum = row.kRow.merging == Merging::kOrderedSum;
      EXPECT_TRUE(IsWithin(want, brackets.*row.kRow.open, kIsSum ? 1e-12 : 0));
      if (!brackets.exact()) return;
      if constexpr (kIsSum) {
        EXPECT_PRED2(IsSameSum, got.*row.kRow.of, want);
      } else {
        EXPECT_EQ(got.*row.kRow.of, want);
      }
    }
  });
  TensorStats rest = got;  // what is never open
  ForEachCounter([&](auto row) {
    if constexpr (row.kHasBracket) rest.*row.kRow.of = expected.*row.kRow.of;
  });
  rest.nonfinite_outputs = expected.nonfinite_outputs;
  ExpectSameInHistogram(rest, expected);
  EXPECT_EQ(got.overflow > 0, expected.overflow > 0);
}

inline void CompareStep(const ReplayStep& got, const ReplayStep& expected) {
  EXPECT_EQ(got.step, expected.step);
  EXPECT_PRED2(IsSameScale, got.scale, expected.scale);
  ASSERT_TRUE(got.uncertain.has_value());
  const StepUncertainty& open = *got.uncertain;
  CompareStats(got.gradients, open.gradients, expected.gradients);
  CompareStats(got.activations, open.activations, expected.activations);
  if (std::isfinite(expected.grad_norm)) {
    EXPECT_TRUE(IsWithin(expected.grad_norm, open.grad_norm, 1e-12))
        << expected.grad_norm << " in " << open.grad_norm.low << " " << open.grad_norm.high;
    EXPECT_TRUE(IsWithin(got.grad_norm, open.grad_norm));
  } else {
    EXPECT_FALSE(std::isfinite(open.grad_norm.high));
  }
  EXPECT_TRUE(IsWithin<uint64_t>(expected.clipped, open.clipped));
  if (got.clipped_elements) {
    EXPECT_TRUE(IsWithin(*expected.clipped_elements, open.clipped_elements));
  }
  EXPECT_EQ(got.clippable_elements, expected.clippable_elements);
  if (!open.certain) return;
  EXPECT_PRED2(IsSameScale, got.next_scale, expected.next_scale);
  EXPECT_EQ(got.finite, expected.finite);
  EXPECT_EQ(got.skipped, expected.skipped);
  EXPECT_EQ(got.cause, expected.cause);
  // The largest part of a norm comes from estimates.
  if (expected.cause != Cause::kNorm) {
    EXPECT_EQ(got.cause_tensor, expected.cause_tensor);
  }
  EXPECT_EQ(got.lower_scale_helps, expected.lower_scale_helps);
}

inline void CompareTensors(const ReplayResult& got, const ReplayResult& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (size_t t = 0; t < got.tensors.size(); ++t) {
    const ReplayTensor &a = got.tensors[t], &b = expected.tensors[t];
    SCOPED_TRACE(b.name);
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.role, b.role);
    ASSERT_TRUE(a.uncertain.has_value());
    CompareStats(a.stats, a.uncertain->stats, b.stats);
    EXPECT_TRUE(IsWithin(b.worst_step_energy_lost, a.uncertain->worst_step_energy_lost, 1e-12));
    EXPECT_EQ(a.first_overflow_step, b.first_overflow_step);
    ASSERT_EQ(a.scales.has_value(), b.scales.has_value());
    if (!a.scales) continue;
    EXPECT_EQ(a.scales->final, b.scales->final);
  }
}

// Compares the replay of a profile with that of its trace, up to a step that the profile cannot
// tell.
inline Compared CompareResults(const ReplayResult& got, const ReplayResult& expected) {
  Compared compared;
  for (size_t i = 0; i < expected.steps.size() && i < got.steps.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(expected.steps[i].step));
    CompareStep(got.steps[i], expected.steps[i]);
    ++compared.steps;
    compared.inexact += !got.steps[i].uncertain->gradients.exact();
    compared.uncertain += !got.steps[i].uncertain->certain;
    if (compared.uncertain > 0) return compared;
  }
  EXPECT_EQ(got.steps.size(), expected.steps.size());
  CompareTensors(got, expected);
  EXPECT_EQ(got.stopped_at, expected.stopped_at);
  EXPECT_EQ(got.events.size(), expected.events.size());
  return compared;
}

// Replays runs both ways and compares all results.
inline Compared CompareReplays(const TraceReader& trace, const std::vector<ReplayRun>& runs,
                               const ReplayOptions& options = {},
                               const HistogramEdges& edges = DefaultEdges()) {
  const ProfiledTrace profile(trace, edges, options);
  const std::vector<ReplayResult> got = Replay(profile, runs, options);
  const std::vector<ReplayResult> expected = Replay(trace, runs, options);
  Compared total;
  for (size_t r = 0; r < runs.size() && !testing::Test::HasFailure(); ++r) {
    SCOPED_TRACE(runs[r].format + " " + runs[r].policy);
    const Compared compared = CompareResults(got[r], expected[r]);
    total.steps += compared.steps;
    total.uncertain += compared.uncertain;
    total.inexact += compared.inexact;
  }
  return total;
}

}  // namespace dlsim::sim
