// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/branch.h"

#include <limits>

namespace dlsim::sim {
namespace {

// Returns the scale that the original would print as the next one. One that is announced early acts
// after one more step.
double NextScale(const LossScaler& scaler, bool announced) {
  if (!announced) return scaler.scale();
  LossScaler later = scaler;
  later.Next({});
  return later.scale();
}

}  // namespace

bool Fits(const std::optional<PrintedNumber>& printed, double scale) {
  return !printed || printed->Holds(scale);
}

ScalerInput InputOf(bool overflow) {
  ScalerInput input = {.overflow = overflow};
  if (overflow) input.absmax = std::numeric_limits<float>::infinity();
  return input;
}

bool TakeStep(bool overflow, Branch& branch) {
  if (branch.ended) return false;
  const ScalerDecision decision = branch.scaler.Next(InputOf(overflow));
  branch.ended = decision.event && decision.event->fatal;
  return decision.skip == overflow;
}

CleanSteps TakeCleanSteps(int64_t most, CleanUntil until, Branch& branch) {
  if (branch.ended || most == 1) return {.count = 1, .fits = TakeStep(false, branch)};
  const auto [count, last] = branch.scaler.NextClean(most, until);
  branch.ended = last.event && last.event->fatal;
  return {.count = count, .fits = !last.skip};
}

bool MayTell(const LoggedOverflow& logged, const Branch& branch) {
  return !branch.ended && Fits(logged.used, branch.scaler.scale());
}

bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch) {
  if (!MayTell(logged, branch) || !TakeStep(true, branch)) return false;
  branch.way.overflow_at.push_back(at);
  return Fits(logged.next, NextScale(branch.scaler, announced));
}

void WriteState(const Branch& branch, std::string& bytes) {
  bytes = branch.ended ? '!' : ':';
  AppendBytes(branch.way.overflow_at.size(), bytes);
  branch.scaler.AppendState(bytes);
}

void RemoveTwins(std::vector<Branch>& branches) {
  if (branches.size() < 2) return;
  DifferentBranches kept;
  std::erase_if(branches, [&](const Branch& branch) { return !kept.Add(branch); });
}

}  // namespace dlsim::sim
