// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/sim/runs.h"
#include "sim/policies/projection.h"

namespace dlsim::sim {
namespace {

// A reason without its numbers, which differ from point to point.
std::string ReasonKey(const PolicyInfo& policy, const PolicyRefusal& refusal) {
  std::string key = std::string(policy.name).append(" ").append(refusal.type);
  for (const char c : refusal.message) {
    if (std::string_view("0123456789.e+-").find(c) == std::string_view::npos) key += c;
  }
  return key;
}

class Refusals {
 public:
  void Add(const PolicyInfo& policy, const PolicyRefusal& refusal) {
    const auto [place, added] = index_.try_emplace(ReasonKey(policy, refusal), list_.size());
    if (added) {
      list_.push_back({std::string(policy.name), refusal.type + ": " + refusal.message, 0});
    }
    ++list_[place->second].count;
  }
  std::vector<RefusedPoints> Take() { return std::move(list_); }

 private:
  std::map<std::string, size_t> index_;
  std::vector<RefusedPoints> list_;
};

void RequireRuns(const SweepPlan& plan) {
  if (!plan.runs.empty()) return;
  if (plan.refused.empty()) throw UsageError("sweep", "no runs", "--random 1 or more");
  throw UsageError("policy " + plan.refused.front().policy,
                   "every run was refused: " + plan.refused.front().reason);
}

// Returns whether the profile has only the sum of a step's recordings.
bool HoldsSums(const ProfileReader& profile) {
  if (profile.step_count() == 0) return false;
  const ProfileStep first = profile.Load(0);
  return first.histograms.size() < first.files.size();
}

// Returns why a profile cannot answer a run; empty if it can.
std::string Unanswerable(const ReplayRun& run, bool holds_sums) {
  if (run.conversion.rounding == Rounding::kStochastic) {
    return "stochastic rounding needs single elements, which the trace has but the profile "
           "lacks";
  }
  if (run.scaler.looks_ahead() && holds_sums) {
    return "this policy needs single micro-steps, which the trace has but the profile lacks";
  }
  return "";
}

}  // namespace

SweepPlan PlanSweep(const SweepSetup& setup) {
  const NoProjections notes_are_not_read;
  SweepPlan plan;
  for (const std::string& name : setup.grid.formats) plan.formats.push_back(ParseFormat(name));
  Refusals refusals;
  for (GridPoint& point : PointsOf(setup.grid)) {
    const PolicyInfo& policy = *point.policy;
    const NamedFormat& format = plan.formats[point.format];
    try {
      ReplayRun run =
          MakeRun(format, policy, policy.make(ParametersOf(setup.grid, point), format.name));
      run.conversion = setup.conversion;
      run.conversion.format = format.format;
      run.conversion.rounding = setup.roundings[point.rounding];
      run.rules.finite_test = setup.finite_test.value_or(run.rules.finite_test);
      plan.runs.push_back(std::move(run));
      plan.points.push_back(std::move(point));
    } catch (const PolicyRefusal& refusal) {
      refusals.Add(policy, refusal);
    }
  }
  plan.refused = refusals.Take();
  RequireRuns(plan);
  return plan;
}

void KeepAnswerable(const ProfileReader& profile, SweepPlan& plan) {
  const bool holds_sums = HoldsSums(profile);
  std::map<std::pair<std::string, std::string>, uint64_t> refused;
  size_t kept = 0;
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    const std::string reason = Unanswerable(plan.runs[r], holds_sums);
    if (!reason.empty()) {
      ++refused[{plan.runs[r].policy, reason}];
    } else {
      if (kept != r) {
        plan.runs[kept] = std::move(plan.runs[r]);
        plan.points[kept] = std::move(plan.points[r]);
      }
      ++kept;
    }
  }
  plan.runs.erase(plan.runs.begin() + static_cast<std::ptrdiff_t>(kept), plan.runs.end());
  plan.points.resize(kept);
  for (const auto& [why, count] : refused) plan.refused.push_back({why.first, why.second, count});
  RequireRuns(plan);
}

std::vector<NamedValue> AllParameters(const SweepSetup& setup, const SweepPlan& plan,
                                      const GridPoint& point) {
  const NoProjections notes_are_not_read;
  return point.policy->make(ParametersOf(setup.grid, point), plan.formats[point.format].name)
      .parameters;
}

}  // namespace dlsim::sim
