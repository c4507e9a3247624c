// SPDX-License-Identifier: Apache-2.0
#include "src/base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dlsim {
namespace {

TEST(ParallelInOrder, TakesAllInOrderOnTheCallingThread) {
  const std::thread::id caller = std::this_thread::get_id();
  for (const uint64_t elements : {uint64_t{0}, kMuchWork}) {
    for (const size_t count : {0u, 1u, 2u, 7u, 500u}) {
      std::vector<std::string> taken;
      const auto make = [](size_t i) { return std::to_string(i); };
      const auto take = [&](size_t i, const std::string& made) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_EQ(i, taken.size());
        taken.push_back(made);
        return true;
      };
      ParallelInOrder(count, make, take, elements);
      ASSERT_EQ(taken.size(), count);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(taken[i], std::to_string(i));
    }
  }
}

TEST(ParallelInOrder, FewPiecesWaitToBeTaken) {
  std::atomic<size_t> made = 0, most = 0;
  size_t taken = 0;
  const auto make = [&](size_t i) {
    ++made;
    return i;
  };
  const auto take = [&](size_t, size_t) {
    std::this_thread::yield();
    most = std::max(most.load(), made - taken++);
    return true;
  };
  ParallelInOrder(2000, make, take, kMuchWork);
  EXPECT_EQ(taken, 2000);
  EXPECT_LE(most, 4 * static_cast<size_t>(ThreadsFor(2000, kMuchWork)) + 1);
  for (const size_t ahead : {0u, 1u, 3u}) {
    made = most = taken = 0;
    ParallelInOrder(200, make, take, kMuchWork, ahead);
    EXPECT_EQ(taken, 200);
    EXPECT_LE(most, std::max<size_t>(ahead, 1));
  }
}

TEST(ParallelInOrder, WhatFailsFirstEndsItAfterAllBeforeIt) {
  for (const uint64_t elements : {uint64_t{0}, kMuchWork}) {
    size_t taken = 0;
    const auto make = [](size_t i) {
      if (i == 40 || i == 41) throw std::runtime_error(std::to_string(i));
      return i;
    };
    const auto run = [&] {
      ParallelInOrder(
          100, make, [&](size_t, size_t) { return ++taken > 0; }, elements);
    };
    try {
      run();
      ADD_FAILURE();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "40");
    }
    EXPECT_EQ(taken, 40);
  }
}

TEST(ParallelInOrder, WhatCannotBeTakenEndsIt) {
  size_t taken = 0;
  const auto take = [&](size_t i, size_t) {
    if (i == 3) throw std::runtime_error("take");
    return ++taken > 0;
  };
  const auto make = [](size_t i) { return i; };
  EXPECT_THROW(ParallelInOrder(100, make, take, kMuchWork), std::runtime_error);
  EXPECT_EQ(taken, 3);
}

TEST(ParallelInOrder, WorkWithinAPieceStaysOnItsThread) {
  const auto make = [](size_t) {
    const std::thread::id own = std::this_thread::get_id();
    bool stays = true;
    ParallelFor(100, [&](size_t) { stays &= std::this_thread::get_id() == own; });
    return stays;
  };
  const auto take = [](size_t, bool stays) {
    EXPECT_TRUE(stays);
    return true;
  };
  if (ThreadsFor(2, kMuchWork) > 1) ParallelInOrder(20, make, take, kMuchWork);
}

}  // namespace
}  // namespace dlsim
