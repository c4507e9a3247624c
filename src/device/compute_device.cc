// SPDX-License-Identifier: Apache-2.0
#include "src/device/compute_device.h"

#include <future>
#include <utility>

#include "src/base/beside.h"
#include "src/base/float_environment.h"

namespace dlsim {

void RunOnDevice(const StepWork& step, DeviceWork& work) {
  const DefaultFloatEnvironment environment;
  std::future<void> beside;  // its destructor waits
  if (const std::function<void()>* const waiting = TakeBeside()) {
    beside = StartBeside([waiting] {
      const DefaultFloatEnvironment of_thread;
      (*waiting)();
    });
  }
  ForEachWave(*step.tensors, [&](std::span<const Block> wave) { work.Add(wave); });
  work.Finish();
  if (beside.valid()) beside.get();
}

}  // namespace dlsim
