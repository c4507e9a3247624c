// SPDX-License-Identifier: Apache-2.0
#include "src/codec/dispatch.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "dlsim/error.h"

namespace dlsim {
namespace {

struct NamedTarget {
  std::string name;
  int64_t bit;
};

// Those of some targets that are compiled, best first: Highway numbers better ones with lower bits.
std::vector<NamedTarget> NamesOfTargets(int64_t targets) {
  constexpr int kTargetBits = 62;
  std::vector<NamedTarget> named;
  for (int i = 0; i <= kTargetBits; ++i) {
    const int64_t bit = int64_t{1} << i;
    if ((targets & HWY_TARGETS & bit) != 0) named.push_back({hwy::TargetName(bit), bit});
  }
  return named;
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

constexpr size_t kUnknownCacheBytes = size_t{32} << 20;

// As Linux lists the caches of the first processor, the last one last; 0 if it does not.
size_t ListedBytes() {
  size_t bytes = 0;
  for (int index = 0;; ++index) {
    const std::string cache =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream size_file(cache + "size"), type_file(cache + "type");
    size_t size = 0;
    char unit = 0;  // "32768K"
    std::string type;
    if (!(size_file >> size >> unit) || !(type_file >> type)) return bytes;
    if (type != "Instruction") bytes = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
  }
}

size_t ReadLastLevelCacheBytes() {
  // The C library comes second: some versions multiply by the number of processors on AMD machines.
  if (const size_t bytes = ListedBytes(); bytes != 0) return bytes;
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) {
    return static_cast<size_t>(bytes);
  }
#endif
  return kUnknownCacheBytes;
}

}  // namespace

size_t LastLevelCacheBytes() {
  static const size_t bytes = ReadLastLevelCacheBytes();
  return bytes;
}

const hwy::ChosenTarget& KernelTarget() { return InUse(); }

std::vector<std::string> SupportedSimdTargets() {
  std::vector<std::string> names;
  for (const NamedTarget& target : NamesOfTargets(MachineTargets())) names.push_back(target.name);
  return names;
}

std::string CurrentSimdTarget() { return NamesOfTargets(InUse().targets).front().name; }

void UseSimdTarget(std::string_view name) {
  if (name.empty()) return InUse().Use(MachineTargets());
  std::string known;
  for (const NamedTarget& target : NamesOfTargets(MachineTargets())) {
    if (name == target.name) return InUse().Use(target.bit);
    known += (known.empty() ? "one of " : ", ") + target.name;
  }
  throw UsageError("SIMD target", "not available on this machine", known, Quoted(name));
}

}  // namespace dlsim
