// SPDX-License-Identifier: Apache-2.0
// Parallel work that also does a side task that waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "src/base/parallel.h"
#include "src/base/side_task.h"

namespace dlsim {

// ParallelFor, which also does the waiting side task: first, so that bodies fill the other threads
// meanwhile.
template <class Body>
void ParallelForWithSideTask(size_t count, const Body& body, uint64_t elements = kMuchWork) {
  const std::function<void()>* const task = TakeSideTask();
  const size_t extra = task == nullptr ? 0 : 1;
  const auto both = [&](size_t i) { i < extra ? (*task)() : body(i - extra); };
  ParallelFor(count + extra, both, elements);
}

}  // namespace dlsim
