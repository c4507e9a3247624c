// SPDX-License-Identifier: Apache-2.0
#include "dlsim/convert.h"

#include <cstdint>

#include "dlsim/error.h"
#include "src/codec/dispatch.h"

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

// Returns what hwy::SupportedTargets would; src/codec/dispatch.h says why that is not called. It
// also checks features such as F16C, which every processor with the ones below has.
int64_t FoundTargets() {
#if HWY_ARCH_X86
  __builtin_cpu_init();
  int64_t targets = HWY_STATIC_TARGET | HWY_EMU128 | HWY_SCALAR;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd")) {
    return targets;
  }
  return targets | HWY_AVX3;
#else
  return hwy::SupportedTargets();
#endif
}

int64_t MachineTargets() {
  static const int64_t targets = FoundTargets();
  return targets;
}

struct TargetInUse : hwy::ChosenTarget {
  TargetInUse() { Use(MachineTargets()); }
  void Use(int64_t some) {
    targets = some;
    Update(some);
  }

  int64_t targets;
};

TargetInUse& InUse() {
  static TargetInUse target;
  return target;
}

}  // namespace

const hwy::ChosenTarget& KernelTarget() { return InUse(); }

std::vector<std::string> SupportedSimdTargets() {
  std::vector<std::string> names;
  ForEachCompiledTarget(MachineTargets(),
                        [&](int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  return names;
}

std::string CurrentSimdTarget() {
  std::string best;
  ForEachCompiledTarget(InUse().targets, [&](int64_t target) {
    if (best.empty()) best = hwy::TargetName(target);
  });
  return best;
}

void UseSimdTarget(std::string_view name) {
  const int64_t machine = MachineTargets();
  if (name.empty()) return InUse().Use(machine);
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
  InUse().Use(wanted);
}

}  // namespace dlsim
