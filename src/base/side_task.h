// SPDX-License-Identifier: Apache-2.0
// A side task: work that one thread does while the others measure, such as opening the next step.
#pragma once

#include <functional>
#include <future>

namespace dlsim {

// Calls work() on a thread of its own or, if none can be started, when the result is waited for.
// The work is copied: where a thread cannot be started, libstdc++ has moved what std::async was
// given to that thread already, and goes on with what is left of it.
template <class Work>
auto StartAsync(const Work& work) {
  return std::async(std::launch::async | std::launch::deferred, work);
}

// Calls work() and meanwhile, once, task(): on a thread of the first ParallelForWithSideTask that
// `work` calls, or after it. If `work` throws, `task` may not have been called.
void RunWithSideTask(const std::function<void()>& task, const std::function<void()>& work);

// Returns the side task that RunWithSideTask left for the parallel work that comes next; the caller
// then has to do it. Null if none waits.
const std::function<void()>* TakeSideTask();

}  // namespace dlsim
