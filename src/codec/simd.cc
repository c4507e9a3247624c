// SPDX-License-Identifier: Apache-2.0
#include "dlsim/simd.h"

#include <cstdint>

#include "dlsim/error.h"
#include "hwy/highway.h"

namespace dlsim {
namespace {

constexpr int kTargetBits = 62;

// Highway numbers better targets with lower bits.
template <class Visit>
void ForEachCompiledTarget(int64_t targets, const Visit& visit) {
  for (int bit = 0; bit <= kTargetBits; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((targets & HWY_TARGETS & target) != 0) visit(target);
  }
}

int64_t MachineTargets() {
  static const int64_t targets = hwy::SupportedTargets();
  return targets;
}

void Activate(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> SupportedSimdTargets() {
  std::vector<std::string> names;
  ForEachCompiledTarget(MachineTargets(),
                        [&](int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  return names;
}

std::string CurrentSimdTarget() {
  std::string best;
  ForEachCompiledTarget(hwy::SupportedTargets(), [&](int64_t target) {
    if (best.empty()) best = hwy::TargetName(target);
  });
  return best;
}

void UseSimdTarget(std::string_view name) {
  const int64_t machine = MachineTargets();
  if (name.empty()) return Activate(0);
  int64_t wanted = 0;
  ForEachCompiledTarget(machine, [&](int64_t target) {
    if (name == hwy::TargetName(target)) wanted = target;
  });
  if (wanted == 0) {
    std::string known;
    for (const std::string& target : SupportedSimdTargets()) {
      known += (known.empty() ? "one of " : ", ") + target;
    }
    throw UsageError("SIMD target", "not available on this machine", known, Quoted(name));
  }
  Activate(wanted);
}

}  // namespace dlsim
