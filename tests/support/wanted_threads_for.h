// SPDX-License-Identifier: Apache-2.0
// Computes with a number of threads for the length of a scope.
#pragma once

#include "src/base/threads.h"

namespace dlsim {

class WantedThreadsFor {
 public:
  explicit WantedThreadsFor(int count) : before_(WantedThreads()) { SetWantedThreads(count); }
  ~WantedThreadsFor() { SetWantedThreads(before_); }
  WantedThreadsFor(const WantedThreadsFor&) = delete;
  WantedThreadsFor& operator=(const WantedThreadsFor&) = delete;

 private:
  int before_;
};

}  // namespace dlsim
