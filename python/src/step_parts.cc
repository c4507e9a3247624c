// SPDX-License-Identifier: Apache-2.0
#include "python/src/step_parts.h"

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"
#include "src/profile/join_steps.h"

namespace dlsim::python {

void StepParts::Add(int64_t step, const Part& part) {
  if (step < 0) throw UsageError("step", "out of range", "0 or more", std::to_string(step));
  if (step_ && step_->step != step) {
    throw UsageError("step", "another one is not finished", std::to_string(step_->step),
                     std::to_string(step));
  }
  const bool more = step_ && std::get<0>(part) == -1 && step_->micro_steps.front() == -1;
  if (!more) CheckMicro(std::get<0>(part));
  TraceStep recorded;
  recorded.step = step;
  recorded.recordings.push_back(RecordingOf(part));
  const int device = DeviceOf(recorded.recordings.front());
  nb::gil_scoped_release release;
  StepOptions options;
  options.scaled = settings_.scaled;
  if (device >= 0) options.device = &Opened(device);
  ProfileStep profile = ProfileOf(recorded, edges_, options);
  if (more) {
    AddTensors(std::move(profile), *step_);
  } else if (step_) {
    AddMicroStep(std::move(profile), *step_);
  } else {
    step_ = std::move(profile);
  }
}

ProfileStep StepParts::Take() {
  if (!step_) throw UsageError("profile", "no step to finish");
  return *std::exchange(step_, std::nullopt);
}

ComputeDevice& StepParts::Opened(int device) {
  std::unique_ptr<ComputeDevice>& opened = devices_[device];
  if (opened == nullptr) opened = gpu::OpenDevice(device);
  return *opened;
}

// A step without micro-steps has one part, -1; others count theirs from 0.
void StepParts::CheckMicro(int64_t micro) const {
  const int64_t next = step_ ? static_cast<int64_t>(step_->micro_steps.size()) : 0;
  const bool whole = step_ && step_->micro_steps.front() == -1;
  if (!whole && (micro == next || (micro == -1 && !step_))) return;
  throw UsageError("parts", "micro-steps must ascend from 0", std::to_string(next),
                   std::to_string(micro));
}

}  // namespace dlsim::python
