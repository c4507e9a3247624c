// SPDX-License-Identifier: Apache-2.0
#include "sim/base/temporary_files.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>

namespace dlsim::sim {
namespace {

constexpr size_t kMaxTemporaries = 8;

// Fixed buffers: a signal handler must neither allocate nor lock.
struct Slot {
  std::atomic<bool> used = false;
  std::array<char, PATH_MAX> path = {};
};
static_assert(std::atomic<bool>::is_always_lock_free);

std::array<Slot, kMaxTemporaries> slots;
std::mutex changing;  // not taken by signal handlers

}  // namespace

void RememberTemporary(const std::string& path) {
  const std::lock_guard lock(changing);
  for (Slot& slot : slots) {
    if (slot.used || path.size() >= slot.path.size()) continue;
    std::memcpy(slot.path.data(), path.c_str(), path.size() + 1);
    slot.used = true;
    return;
  }
}

void ForgetTemporary(const std::string& path) {
  const std::lock_guard lock(changing);
  for (Slot& slot : slots) {
    if (slot.used && path == slot.path.data()) slot.used = false;
  }
}

void RemoveTemporaries() {
  for (const Slot& slot : slots) {
    if (slot.used) unlink(slot.path.data());
  }
}

}  // namespace dlsim::sim
