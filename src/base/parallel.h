// SPDX-License-Identifier: Apache-2.0
// The one place that uses threads. Work is cut into fixed blocks, whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>

#include "dlsim/measure.h"
#include "src/base/float_environment.h"

namespace dlsim {

// Work that is worth a thread, in elements that are looked at once: some 50 microseconds. What is
// less is done before another thread awakes.
inline constexpr uint64_t kElementsPerThread = uint64_t{1} << 18;
inline constexpr uint64_t kMuchWork = std::numeric_limits<uint64_t>::max();

// Returns how many threads do so much work: one, or as many as OpenMP would use, or fewer if the
// system starts no more. OpenMP itself would end the process then.
int ThreadsFor(size_t count, uint64_t elements);

// Calls body(i) for i in [0, count) on several threads, in any order, in the default floating-point
// environment; rethrows one of the exceptions that bodies threw. Results are stored by index, so
// that the schedule cannot be seen; blocks differ in size, so it is dynamic. `elements` tells how
// much work it is; little of it stays on the calling thread.
template <class Body>
void ParallelFor(size_t count, const Body& body, uint64_t elements = kMuchWork) {
  const int threads = ThreadsFor(count, elements);
  if (threads <= 1) {
    const DefaultFloatEnvironment environment;
    for (size_t i = 0; i < count; ++i) body(i);
    return;
  }
  const int64_t last = static_cast<int64_t>(count);
  std::exception_ptr failure;
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
