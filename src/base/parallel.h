// SPDX-License-Identifier: Apache-2.0
// The one place that uses threads. Work is cut into fixed blocks, whatever the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

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

// Work of which each piece takes one thread, and whose results are taken in order.

// The state of one ParallelInOrder: which pieces were begun and taken, and what waits to be taken.
template <class Result, class Make, class Take>
class OrderedPieces {
 public:
  // At most `in_flight` pieces are begun before the first of them is taken, which bounds memory.
  OrderedPieces(size_t count, size_t in_flight, const Make& make, const Take& take)
      : count_(count), make_(make), take_(take), results_(in_flight) {}

  // What every thread does; one of them, the taker, also takes.
  void Work(bool is_taker) {
    std::unique_lock lock(mutex_);
    while (!failure_ && !ended_ && (is_taker ? taken_ : begun_) < count_) {
      if (is_taker && First().has_value()) {
        TakeFirst(lock);
      } else if (begun_ < count_ && begun_ < taken_ + results_.size()) {
        MakeNext(lock);
      } else {
        WaitForChange(lock);
      }
    }
  }

  void RethrowFailure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Made {
    std::optional<Result> result;
    std::exception_ptr failure;
  };

  // Waits by an atomic number, which takes nothing but headers: std::condition_variable's wait
  // needs the C++ library of GCC 12, which systems with glibc 2.34 lack.
  void WaitForChange(std::unique_lock<std::mutex>& lock) {
    const uint32_t seen = changes_;
    lock.unlock();
    changes_.wait(seen);
    lock.lock();
  }
  void NotifyOfChange() {
    ++changes_;
    changes_.notify_all();
  }

  std::optional<Made>& First() { return results_[taken_ % results_.size()]; }

  void MakeNext(std::unique_lock<std::mutex>& lock) {
    const size_t i = begun_++;
    lock.unlock();
    Made made;
    try {
      const DefaultFloatEnvironment environment;
      made.result.emplace(make_(i));
    } catch (...) {
      made.failure = std::current_exception();
    }
    lock.lock();
    results_[i % results_.size()] = std::move(made);
    NotifyOfChange();
  }

  void TakeFirst(std::unique_lock<std::mutex>& lock) {
    Made made = *std::exchange(First(), std::nullopt);
    lock.unlock();
    bool goes_on = true;
    try {
      if (made.failure) std::rethrow_exception(made.failure);
      goes_on = take_(taken_, std::move(*made.result));
    } catch (...) {
      made.failure = std::current_exception();
    }
    lock.lock();
    failure_ = made.failure;
    ended_ = !goes_on;
    ++taken_;
    NotifyOfChange();
  }

  size_t count_;
  const Make& make_;
  const Take& take_;
  std::mutex mutex_;
  std::atomic<uint32_t> changes_ = 0;
  std::vector<std::optional<Made>> results_;  // of piece i at i modulo their number
  size_t begun_ = 0, taken_ = 0;
  bool ended_ = false;  // nothing more is wanted
  std::exception_ptr failure_;
};

// Enough pieces begun that nobody waits for one that takes longer, unless threads are many.
inline constexpr size_t kEnoughAhead = 64;

// Calls make(i) for i in [0, count) on several threads, and take(i, its result) in order on the
// calling thread, until take returns false. What fails first in this order is thrown; all before it
// was taken. `elements` as for ParallelFor. At most `most_ahead` pieces, and one at least, are made
// before the first of them is taken. Parallel work within make() stays on its thread.
template <class Make, class Take>
void ParallelInOrder(size_t count, const Make& make, const Take& take, uint64_t elements,
                     uint64_t most_ahead = std::numeric_limits<uint64_t>::max()) {
  const int threads = ThreadsFor(count, elements);
  if (threads <= 1) {
    const DefaultFloatEnvironment environment;
    for (size_t i = 0; i < count && take(i, make(i)); ++i) {
    }
    return;
  }
  constexpr size_t kPerThread = 4;
  const auto workers = static_cast<size_t>(threads);
  const size_t enough = std::max(workers, std::min(kPerThread * workers, kEnoughAhead));
  OrderedPieces<decltype(make(size_t{0})), Make, Take> pieces(
      count, std::clamp<uint64_t>(most_ahead, 1, enough), make, take);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) pieces.Work(thread == 0);
  pieces.RethrowFailure();
}

}  // namespace dlsim
