// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/branch.h"

#include <limits>
#include <string>
#include <unordered_set>
#include <variant>

namespace dlsim::sim {
namespace {

template <class Value>
void AppendBytes(const Value& value, std::string& key) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Returns what decides how a branch goes on.
std::string KeyOf(const Branch& branch) {
  std::string key(1, branch.ended ? '!' : ':');
  AppendBytes(branch.way.overflow_at.size(), key);
  for (const NamedValue& field : branch.scaler.Checkpoint()) {
    if (const auto* text = std::get_if<std::string>(&field.value)) key += *text + ' ';
    if (const auto* number = std::get_if<double>(&field.value)) AppendBytes(*number, key);
    if (const auto* count = std::get_if<int64_t>(&field.value)) AppendBytes(*count, key);
    if (const auto* flag = std::get_if<bool>(&field.value)) AppendBytes(*flag, key);
  }
  return key;
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

double NextScale(const LossScaler& scaler, bool announced) {
  if (!announced) return scaler.scale();
  LossScaler later = scaler;
  later.Next({});
  return later.scale();
}

bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch) {
  if (!Fits(logged.used, branch.scaler.scale()) || !TakeStep(true, branch)) return false;
  branch.way.overflow_at.push_back(at);
  return Fits(logged.next, NextScale(branch.scaler, announced));
}

void RemoveTwins(std::vector<Branch>& branches) {
  if (branches.size() < 2) return;
  std::unordered_set<std::string> seen;
  std::erase_if(branches, [&](const Branch& branch) { return !seen.insert(KeyOf(branch)).second; });
}

}  // namespace dlsim::sim
