// SPDX-License-Identifier: Apache-2.0
#include "sim/app/device_option.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"
#include "sim/base/caller.h"

namespace dlsim::sim {
namespace {

// Returns the first device that opens; null if there is none.
std::unique_ptr<ComputeDevice> OpenAnyDevice() {
  for (const gpu::DeviceInfo& device : gpu::Devices().devices) {
    try {
      return gpu::OpenDevice(device.index);
    } catch (const Error&) {  // in use by another process alone, or too old
    }
  }
  return nullptr;
}

}  // namespace

void VisitDevice(OptionRows& option, DeviceChoice& choice) {
  option.Group(kComputationGroup);
  option.Read("--device", [&choice](const std::string& text) { choice = ParseDevice(text); },
              "auto|cpu|cuda[:N]",
              "Where to compute: cpu, cuda, cuda:N, or auto (default): a CUDA device for 1 GiB of "
              "input or more, else the CPU; the results are the same",
              {"auto", "cpu", "cuda"});
}

std::unique_ptr<ComputeDevice> OpenDevice(const DeviceChoice& choice, uint64_t input_bytes) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kCpu:
      return nullptr;
    case DeviceChoice::Kind::kCuda:
      return gpu::OpenDevice(choice.index);
    case DeviceChoice::Kind::kAuto:
      break;
  }
  return input_bytes < kAutoDeviceBytes ? nullptr : OpenAnyDevice();
}

uint64_t BytesOfFile(const std::string& path) {
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(path, failed);
  return failed ? 0 : bytes;
}

void NoteDevice(const ComputeDevice* device) {
  if (device == nullptr) return;
  CurrentCaller().Say("note: computes on " + Printable(device->name()));
}

}  // namespace dlsim::sim
