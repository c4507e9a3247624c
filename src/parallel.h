// SPDX-License-Identifier: Apache-2.0
// The one place that uses threads. Work is cut into fixed blocks, whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#ifdef __x86_64__
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace dlsim {

// Elements per block of work: 256 KiB of float32.
inline constexpr size_t kBlockElements = size_t{1} << 16;

// Gives a scope the default floating-point environment: to nearest even, subnormals kept. Callers
// may flush subnormals (Python programs do), and each thread has an environment of its own.
#ifdef __x86_64__
// Vector instructions obey MXCSR alone. Reading it is cheap and writing is not, so it is written
// only where something but the sticky exception flags differs from the default.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if (differs()) _mm_setcsr(saved_);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  static constexpr uint32_t kDefault = 0x1F80;  // all exceptions masked
  static constexpr uint32_t kExceptionFlags = 0x3F;
  bool differs() const { return (saved_ & ~kExceptionFlags) != kDefault; }

  uint32_t saved_;
};
#else
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};
#endif

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
#pragma omp parallel for schedule(dynamic)
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
