// SPDX-License-Identifier: Apache-2.0
#include "src/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace dlsim {
namespace {

TEST(Parallel, CallsEachIndexOnceWhateverTheWork) {
  for (const uint64_t elements : {uint64_t{0}, kElementsPerThread, kMuchWork}) {
    for (const size_t count : std::vector<size_t>{0, 1, 2, 7, 5000}) {
      std::vector<std::atomic<int>> calls(count);
      ParallelFor(
          count, [&](size_t i) { ++calls[i]; }, elements);
      for (const std::atomic<int>& of_index : calls) EXPECT_EQ(of_index, 1);
    }
  }
}

TEST(Parallel, LittleWorkStaysOnTheCallingThread) {
  const std::thread::id caller = std::this_thread::get_id();
  const auto expect_caller = [&](size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); };
  ParallelFor(1000, expect_caller, 2 * kElementsPerThread - 1);
  ParallelFor(1, expect_caller);
  EXPECT_EQ(ThreadsFor(1000, 0), 1);
  EXPECT_EQ(ThreadsFor(1, kMuchWork), 1);
}

TEST(Parallel, RethrowsAndGoesOnWithTheNextLoop) {
  const auto fail = [](size_t i) {
    if (i == 40) throw std::runtime_error("body");
  };
  EXPECT_THROW(ParallelFor(100, fail), std::runtime_error);
  EXPECT_THROW(ParallelFor(100, fail, 1), std::runtime_error);
  std::atomic<int> calls = 0;
  ParallelFor(100, [&](size_t) { ++calls; });
  EXPECT_EQ(calls, 100);
}

}  // namespace
}  // namespace dlsim
