// SPDX-License-Identifier: Apache-2.0
#include "sim/app/waiting_threads.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "src/base/wanted_threads.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

// Less is measured in some fifteen milliseconds, and on one thread for the most part; a restart
// takes five. On a busy machine threads that spin take three times the processor time of the work.
constexpr uint64_t kMuch = uint64_t{2} << 20;  // bytes
constexpr int kManyFiles = 1000;

uint64_t SizeOf(const fs::path& path) {
  std::error_code failed;
  const uintmax_t size = fs::file_size(path, failed);
  return failed ? 0 : size;
}

bool IsMuch(const char* argument) {
  std::error_code failed;
  if (!fs::is_directory(argument, failed)) return SizeOf(argument) >= kMuch;
  uint64_t bytes = 0;
  int files = 0;
  for (fs::directory_iterator entry(argument, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    bytes += SizeOf(entry->path());
    if (++files >= kManyFiles || bytes >= kMuch) return true;
  }
  return false;
}

}  // namespace

void WaitWithoutSpinning(int argc, char** argv) {
  if (WantedThreads() == 1) return;
  for (const char* const name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
    if (std::getenv(name) != nullptr) return;
  }
  if (std::none_of(argv + std::min(argc, 1), argv + argc, IsMuch)) return;
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GOMP_SPINCOUNT", "1000", 0);
  execv("/proc/self/exe", argv);  // returns if it fails: threads spin then
}

}  // namespace dlsim::sim
