// SPDX-License-Identifier: Apache-2.0
#include "src/base/side_task.h"

#include <utility>

namespace dlsim {
namespace {

thread_local const std::function<void()>* waiting = nullptr;

}  // namespace

const std::function<void()>* TakeSideTask() { return std::exchange(waiting, nullptr); }

void RunWithSideTask(const std::function<void()>& task, const std::function<void()>& work) {
  struct Waiting {
    explicit Waiting(const std::function<void()>& of_work)
        : outer(std::exchange(waiting, &of_work)) {}
    ~Waiting() { waiting = outer; }
    const std::function<void()>* outer;
  };
  const Waiting until_done(task);
  work();
  if (const std::function<void()>* const left = TakeSideTask()) (*left)();
}

}  // namespace dlsim
