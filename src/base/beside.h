// SPDX-License-Identifier: Apache-2.0
// Work that one thread does while the others measure, such as opening the next step.
#pragma once

#include <functional>
#include <future>

namespace dlsim {

// Calls work() on a thread of its own or, if none can be started, when the result is waited for.
// The work is copied: where a thread cannot be started, libstdc++ has moved what std::async was
// given to that thread already, and goes on with what is left of it.
template <class Work>
auto StartBeside(const Work& work) {
  return std::async(std::launch::async | std::launch::deferred, work);
}

// Calls work() and meanwhile, once, beside(): on a thread of the first ParallelForBeside that
// `work` calls, or after it. If `work` throws, `beside` may not have been called.
void RunBeside(const std::function<void()>& beside, const std::function<void()>& work);

// Returns what RunBeside has this thread do beside the work that comes next, which the caller then
// has to do; null if there is nothing, or nothing any more.
const std::function<void()>* TakeBeside();

}  // namespace dlsim
