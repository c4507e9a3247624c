// SPDX-License-Identifier: Apache-2.0
#include "src/base/parallel.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "src/base/threads.h"

namespace dlsim {
namespace {

bool forked = false;

[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

#ifdef _OPENMP

// Starts up to `count` threads that wait for each other, and returns how many came to be.
int CountStartable(int count) {
  std::mutex all_started;
  std::vector<pthread_t> threads;
  threads.reserve(static_cast<size_t>(count));
  const auto wait = [](void* mutex) -> void* {
    const std::lock_guard lock(*static_cast<std::mutex*>(mutex));
    return nullptr;
  };
  {
    const std::lock_guard lock(all_started);
    for (int i = 0; i < count; ++i) {
      pthread_t thread{};
      if (pthread_create(&thread, nullptr, wait, &all_started) != 0) break;
      threads.push_back(thread);
    }
  }
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return static_cast<int>(threads.size());
}

// How many threads OpenMP would use, or fewer if the system starts no more; one where they are at
// work already.
int UsableThreads() {
  if (omp_in_parallel() != 0) return 1;
  static std::mutex mutex;
  static std::atomic<int> asked = 1, usable = 1;
  const int wanted = WantedThreads();
  if (wanted <= usable) return wanted;
  const std::lock_guard lock(mutex);
  if (wanted > asked) {
    usable = CountStartable(wanted - 1) + 1;
    asked = wanted;
  }
  return wanted < usable ? wanted : usable.load();
}

#else

int UsableThreads() { return 1; }

#endif

}  // namespace

int WantedThreads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

void SetWantedThreads([[maybe_unused]] int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#endif
}

int ThreadsFor(size_t count, uint64_t elements) {
  const bool little = count <= 1 || elements < 2 * kElementsPerThread;
  return little || forked ? 1 : UsableThreads();
}

}  // namespace dlsim
