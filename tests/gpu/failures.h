// SPDX-License-Identifier: Apache-2.0
// Checks of what is left and what is said when calls of the CUDA runtime fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "emulation.h"

namespace dlsim::gpu {

// Returns what the Error says that `work` throws; empty if it throws none.
template <class Work>
std::string MessageOf(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    return error.what();
  }
  return "";
}

inline bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Makes the first call of this name that `work` needs fail, then the second, and so on until `work`
// gets by. Each failure must end in an Error that names the call, and must leave nothing behind. An
// empty name stands for all that allocates, enqueues or waits. Returns the number of failures.
template <class Work>
uint64_t FailEachCall(std::string_view name, cudaError_t error, const Work& work) {
  const size_t live = emulation::Live().total();
  for (uint64_t n = 1;; ++n) {
    emulation::FailCall(name, n, error);
    const std::string message = MessageOf(work);
    const std::string failed = emulation::FailedCall();
    emulation::FailCall("", 0, cudaSuccess);
    EXPECT_EQ(emulation::Live().total(), live) << "after failure " << n << ", of " << failed;
    if (failed.empty()) {
      EXPECT_EQ(message, "");
      return n - 1;
    }
    const bool is_named = StartsWith(message, failed) || StartsWith(message, "dlsim::gpu::");
    EXPECT_TRUE(is_named || failed == "cudaLaunchKernelEx")
        << n << ", " << failed << ": " << message;
    EXPECT_NE(message.find(std::string(": ") + cudaGetErrorString(error)), std::string::npos)
        << "failure " << n << ", of " << failed << ": '" << message << "'";
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    if (testing::Test::HasFailure()) return n;
  }
}

// What a call must not do that is made in every step of a training.
class ExpectOnlyLaunches {
 public:
  ~ExpectOnlyLaunches() {
    const emulation::CallCounts now = emulation::Counts();
    EXPECT_EQ(now.allocations, before_.allocations);
    EXPECT_EQ(now.synchronizations, before_.synchronizations);
    EXPECT_EQ(now.pageable_copies, before_.pageable_copies);
    EXPECT_GT(now.launches, before_.launches);
  }

 private:
  emulation::CallCounts before_ = emulation::Counts();
};

}  // namespace dlsim::gpu
