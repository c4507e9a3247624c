// SPDX-License-Identifier: Apache-2.0
#include "src/base/cache_size.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace dlsim {
namespace {

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

}  // namespace dlsim
