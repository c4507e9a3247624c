// SPDX-License-Identifier: Apache-2.0
#include "cache_size.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace dlsim {
namespace {

constexpr size_t kUnknownCacheBytes = size_t{32} << 20;

// Linux lists the caches of a processor in order: "32768K" for the last one. The C library's
// sysconf comes second: some versions multiply by the number of processors on AMD machines.
size_t LastListedCacheBytes() {
  size_t bytes = 0;
  for (int index = 0;; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    size_t size = 0;
    char unit = 0;
    if (!(file >> size >> unit)) return bytes;
    bytes = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
  }
}

size_t ReadLastLevelCacheBytes() {
  if (const size_t bytes = LastListedCacheBytes(); bytes != 0) return bytes;
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

}  // namespace dlsim
