// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/branch.h"

#include <limits>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace dlsim::sim {
namespace {

// Appends what decides how a branch goes on.
void AppendKey(const Branch& branch, std::string& keys) {
  keys += branch.ended ? '!' : ':';
  AppendBytes(branch.way.overflow_at.size(), keys);
  branch.scaler.AppendState(keys);
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

CleanSteps TakeCleanSteps(int64_t most, Branch& branch) {
  if (branch.ended || most == 1) return {.count = 1, .fits = TakeStep(false, branch)};
  const auto [count, last] = branch.scaler.NextClean(most, CleanUntil::kChange);
  branch.ended = last.event && last.event->fatal;
  return {.count = count, .fits = !last.skip};
}

double NextScale(const LossScaler& scaler, bool announced) {
  if (!announced) return scaler.scale();
  LossScaler later = scaler;
  later.Next({});
  return later.scale();
}

bool MayTell(const LoggedOverflow& logged, const Branch& branch) {
  return !branch.ended && Fits(logged.used, branch.scaler.scale());
}

bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch) {
  if (!MayTell(logged, branch) || !TakeStep(true, branch)) return false;
  branch.way.overflow_at.push_back(at);
  return Fits(logged.next, NextScale(branch.scaler, announced));
}

void RemoveTwins(std::vector<Branch>& branches) {
  if (branches.size() < 2) return;
  std::string keys;
  std::vector<size_t> ends;
  for (const Branch& branch : branches) {
    AppendKey(branch, keys);
    ends.push_back(keys.size());
  }
  std::pmr::monotonic_buffer_resource memory;
  std::pmr::unordered_set<std::string_view> seen(branches.size(), &memory);
  size_t start = 0, kept = 0;
  for (size_t i = 0; i < branches.size(); start = ends[i++]) {
    const std::string_view key = std::string_view(keys).substr(start, ends[i] - start);
    if (!seen.insert(key).second) continue;
    if (kept != i) branches[kept] = std::move(branches[i]);
    ++kept;
  }
  branches.erase(branches.begin() + static_cast<std::ptrdiff_t>(kept), branches.end());
}

}  // namespace dlsim::sim
