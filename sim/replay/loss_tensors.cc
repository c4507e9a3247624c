// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/loss_tensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMostSteps = 64;

// The single positive value of a histogram; 0 if it holds anything else.
float OnlyValue(const Histogram& histogram) {
  const float value = std::bit_cast<float>(histogram.Of(Sign::kPositive).largest);
  const bool negative = histogram.Of(Sign::kNegative).largest != 0;
  return histogram.elements != 1 || negative ? 0 : value;
}

// Backward starts from 1; of the mean over micro-steps, from their share.
bool IsShareOfOne(float value) {
  if (!(value > 0 && value <= 1)) return false;
  const double parts = std::round(1 / double{value});
  return std::fabs(double{value} * parts - 1) < 1e-6;
}

// The value of each candidate so far; 0 once it is known to be no loss.
using Values = std::map<std::string, float>;

void CompareWithEarlier(const ProfileStep& step, bool first, Values& values) {
  for (size_t t = 0; t < step.tensors.size(); ++t) {
    const ProfileTensor& tensor = step.tensors[t];
    if (!MayBeLoss(tensor.name, tensor.role, tensor.shape)) continue;
    for (const std::vector<Histogram>& part : step.histograms) {
      const float value = OnlyValue(part[t]);
      const auto [entry, added] = values.try_emplace(tensor.name, first ? value : 0);
      if (entry->second != value || !IsShareOfOne(value)) entry->second = 0;
    }
  }
}

}  // namespace

bool MayBeLoss(const std::string& name, Role role, const std::vector<uint64_t>& shape) {
  if (role != Role::kActGrad) return false;
  return shape.empty() || (shape == std::vector<uint64_t>{1} && name.starts_with("(root)."));
}

std::set<std::string> FindLosses(size_t steps, const std::function<ProfileStep(size_t)>& load) {
  Values values;
  try {
    const size_t samples = std::min(kMostSteps, steps);
    for (size_t s = 0; s < samples; ++s) {
      CompareWithEarlier(load(samples < 2 ? 0 : s * (steps - 1) / (samples - 1)), s == 0, values);
      const auto open = [](const auto& entry) { return entry.second > 0; };
      if (std::ranges::none_of(values, open)) return {};
    }
  } catch (const Error&) {
    return {};
  }
  std::set<std::string> losses;
  for (const auto& [name, value] : values) {
    if (value > 0) losses.insert(name);
  }
  return losses;
}

bool HasBrokenLoss(const std::map<std::string, std::string>& metadata) {
  const auto loss = metadata.find("loss");
  if (loss == metadata.end()) return false;
  double value = 0;
  const char* const end = loss->second.data() + loss->second.size();
  const auto [read, error] = std::from_chars(loss->second.data(), end, value);
  return error == std::errc() && read == end && !std::isfinite(value);
}

RefusedSteps RefusedStepsIn(const std::map<std::string, std::string>& metadata) {
  const auto count = metadata.find(std::string(kRefusedKey));
  if (count == metadata.end()) return {};
  uint64_t steps = 0;
  const char* const end = count->second.data() + count->second.size();
  const auto [read, error] = std::from_chars(count->second.data(), end, steps);
  if (error != std::errc() || read != end || steps == 0) return {};
  const auto first = metadata.find(std::string(kRefusedFirstKey));
  return {steps, first == metadata.end() ? "" : first->second};
}

void NoteLosses(const std::set<std::string>& losses, std::vector<std::string>& notes) {
  if (losses.empty()) return;
  std::string names;
  for (const std::string& name : losses) names += (names.empty() ? "" : ", ") + Printable(name);
  notes.push_back("left out " + names +
                  ": the gradient of the loss itself, which training keeps in float32");
}

}  // namespace dlsim::sim
