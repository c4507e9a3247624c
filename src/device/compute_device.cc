// SPDX-License-Identifier: Apache-2.0
#include "src/device/compute_device.h"

#include <future>
#include <utility>

#include "src/base/float_environment.h"
#include "src/base/side_task.h"

namespace dlsim {

void RunOnDevice(const StepWork& step, DeviceWork& work) {
  const DefaultFloatEnvironment environment;
  std::future<void> side_task;  // its destructor waits
  if (const std::function<void()>* const waiting = TakeSideTask()) {
    side_task = StartAsync([waiting] {
      const DefaultFloatEnvironment of_thread;
      (*waiting)();
    });
  }
  ForEachWave(*step.tensors, [&](std::span<const Block> wave) { work.Add(wave); });
  work.Finish();
  if (side_task.valid()) side_task.get();
}

}  // namespace dlsim
