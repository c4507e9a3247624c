// SPDX-License-Identifier: Apache-2.0
#include "src/base/side_task.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "src/base/parallel_side_task.h"

namespace dlsim {
namespace {

TEST(SideTask, IsDoneOnceWithTheFirstParallelWork) {
  int done = 0;
  std::vector<int> seen;
  const auto task = [&] { ++done; };
  RunWithSideTask(task, [&] {
    for (const size_t count : {size_t{3}, size_t{5}}) {
      std::atomic<int> bodies = 0;
      ParallelForWithSideTask(count, [&](size_t) { ++bodies; });
      seen.push_back(bodies);
      EXPECT_EQ(done, 1);
    }
  });
  EXPECT_EQ(done, 1);
  EXPECT_EQ(seen, (std::vector<int>{3, 5}));
}

TEST(SideTask, IsDoneAfterWorkThatIsNotParallel) {
  int done = 0;
  RunWithSideTask([&] { ++done; }, [&] { EXPECT_EQ(done, 0); });
  EXPECT_EQ(done, 1);
}

TEST(SideTask, IsForgottenIfTheWorkFails) {
  int done = 0;
  const auto fail = [] { throw std::runtime_error("work"); };
  EXPECT_THROW(RunWithSideTask([&] { ++done; }, fail), std::runtime_error);
  ParallelForWithSideTask(2, [](size_t) {});
  EXPECT_EQ(done, 0);
}

TEST(SideTask, MayFail) {
  const auto fail = [] { throw std::runtime_error("task"); };
  EXPECT_THROW(RunWithSideTask(fail, [] { ParallelForWithSideTask(2, [](size_t) {}); }),
               std::runtime_error);
  EXPECT_THROW(RunWithSideTask(fail, [] {}), std::runtime_error);
}

}  // namespace
}  // namespace dlsim
