// SPDX-License-Identifier: Apache-2.0
#include "src/base/beside.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "src/base/parallel_beside.h"

namespace dlsim {
namespace {

TEST(Beside, IsDoneOnceWithTheFirstParallelWork) {
  int done = 0;
  std::vector<int> seen;
  const auto beside = [&] { ++done; };
  RunBeside(beside, [&] {
    for (const size_t count : {size_t{3}, size_t{5}}) {
      std::atomic<int> bodies = 0;
      ParallelForBeside(count, [&](size_t) { ++bodies; });
      seen.push_back(bodies);
      EXPECT_EQ(done, 1);
    }
  });
  EXPECT_EQ(done, 1);
  EXPECT_EQ(seen, (std::vector<int>{3, 5}));
}

TEST(Beside, IsDoneAfterWorkThatIsNotParallel) {
  int done = 0;
  RunBeside([&] { ++done; }, [&] { EXPECT_EQ(done, 0); });
  EXPECT_EQ(done, 1);
}

TEST(Beside, IsForgottenIfTheWorkFails) {
  int done = 0;
  const auto fail = [] { throw std::runtime_error("work"); };
  EXPECT_THROW(RunBeside([&] { ++done; }, fail), std::runtime_error);
  ParallelForBeside(2, [](size_t) {});
  EXPECT_EQ(done, 0);
}

TEST(Beside, MayFail) {
  const auto fail = [] { throw std::runtime_error("beside"); };
  EXPECT_THROW(RunBeside(fail, [] { ParallelForBeside(2, [](size_t) {}); }), std::runtime_error);
  EXPECT_THROW(RunBeside(fail, [] {}), std::runtime_error);
}

}  // namespace
}  // namespace dlsim
