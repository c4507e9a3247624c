// SPDX-License-Identifier: Apache-2.0
// The one place that uses threads. Work is cut into fixed blocks, whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

#include "dlsim/measure.h"
#include "src/base/float_environment.h"

namespace dlsim {

// Whether this process was forked from one that had loaded dlsim, as by Python's multiprocessing.
// GNU's OpenMP runtime would wait there for threads that only the parent has.
bool InForkedChild();

// How many threads work: as many as OpenMP would use, or fewer if the system starts no more. OpenMP
// itself would end the process then.
int UsableThreads();

// Calls body(i) for i in [0, count) on all threads, in any order, in the default floating-point
// environment; rethrows one of the exceptions that bodies threw. Results are stored by index, so
// that the schedule cannot be seen; blocks differ in size, so it is dynamic.
template <class Body>
void ParallelFor(size_t count, const Body& body) {
  // Entering OpenMP takes longer than converting a small array.
  if (count <= 1) {
    const DefaultFloatEnvironment environment;
    if (count == 1) body(size_t{0});
    return;
  }
  const int64_t last = static_cast<int64_t>(count);
  std::exception_ptr failure;
  [[maybe_unused]] const int threads = InForkedChild() ? 1 : UsableThreads();
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < last; ++i) {
    try {
      const DefaultFloatEnvironment environment;
      body(static_cast<size_t>(i));
    } catch (...) {
#pragma omp critical(dlsim_parallel_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// Calls body(begin, length) for the blocks of an array.
template <class Body>
void ParallelForBlocks(size_t elements, const Body& body) {
  ParallelFor((elements + kBlockElements - 1) / kBlockElements, [&](size_t block) {
    const size_t begin = block * kBlockElements;
    const size_t rest = elements - begin;
    body(begin, rest < kBlockElements ? rest : kBlockElements);
  });
}

}  // namespace dlsim
