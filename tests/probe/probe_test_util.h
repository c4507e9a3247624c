// SPDX-License-Identifier: Apache-2.0
// A small probe for tests of its file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/probe.h"

namespace dlsim {

inline ProbeHead SmallHead() {
  ProbeHead head;
  head.elements = 4;
  head.description = {{"model", "a test"}};
  head.tensors = {SampleOf("w.weight", {3, 5}, DType::kF32, 4), SampleOf("b", {2}, DType::kBF16, 4),
                  SampleOf("scalar", {}, DType::kF16, 4)};
  return head;
}

inline std::vector<float> Numbers(size_t count, float first) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = first + 0.25f * static_cast<float>(i);
  return numbers;
}

inline ProbeValues SmallValues(const ProbeHead& head, float first) {
  ProbeValues values = {Numbers(head.FollowedCount(), first), {}};
  values.states.push_back({1, 7, {{"exp_avg", {0.5f, 0.25f}}, {"exp_avg_sq", {1, 2}}}});
  return values;
}

// Groups change at every second step, and the second tensor has no gradient at odd ones.
inline ProbeStep SmallStep(const ProbeHead& head, int64_t step) {
  const float number = static_cast<float>(step);
  ProbeStep made = {step, std::nullopt, {}, {0, 0, 1}, {true, step % 2 == 0, true}, {}};
  if (step % 2 == 0) made.clip = 0.5;
  made.groups = {{"adamw", {{"lr", 0.1 * static_cast<double>(step / 2)}, {"beta1", 0.9}}},
                 {"sgd", {{"lr", 1e-3}, {"momentum", 0}}}};
  made.gradients = Numbers(head.FollowedCount(), -number);
  return made;
}

// Steps 0 to 3, and values at both ends and where the training was resumed.
inline void WriteSmallProbe(const std::string& path) {
  const ProbeHead head = SmallHead();
  ProbeWriter writer(path, head, ProbeWriter::Existing::kReplace);
  writer.AddValues(SmallValues(head, 1));
  for (int64_t step = 0; step < 4; ++step) {
    if (step == 2) writer.AddValues(SmallValues(head, 2));
    writer.AddStep(SmallStep(head, step));
  }
  writer.AddValues(SmallValues(head, 3));
  writer.Close();
}

// All that a probe holds.
struct WholeProbe {
  ProbeHead head;
  std::vector<ProbeStep> steps;
  std::vector<std::optional<ProbeValues>> values;
  uint64_t cut_bytes = 0;

  friend bool operator==(const WholeProbe&, const WholeProbe&) = default;
};

template <class Reader>
WholeProbe ReadWhole(const Reader& reader) {
  WholeProbe whole = {reader.head(), {}, {}, reader.cut_bytes()};
  for (size_t i = 0; i < reader.step_count(); ++i) whole.steps.push_back(reader.ReadStep(i));
  for (size_t i = 0; i <= reader.step_count(); ++i) whole.values.push_back(reader.ReadValues(i));
  return whole;
}

inline WholeProbe ReadWholeProbe(const std::string& path) {
  return ReadWhole(ProbeReader::Open(path));
}

}  // namespace dlsim
