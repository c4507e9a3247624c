// SPDX-License-Identifier: Apache-2.0
#include "sim/app/device_option.h"

#include <filesystem>
#include <system_error>

#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"
#include "sim/app/help_format.h"
#include "sim/app/option_values.h"
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

void AddDeviceOption(CLI::App& command, DeviceChoice& choice, const std::string& automatic) {
  const auto assign = [&choice](const std::string& text) { choice = ParseDevice(text); };
  StartGroup(command, kComputationGroup);
  OfferValues(command.add_option_function<std::string>(
                  "--device", assign,
                  "Where to compute: cpu, cuda or cuda:N (the same results), or auto (default): " +
                      automatic),
              {"auto", "cpu", "cuda"})
      ->option_text("auto|cpu|cuda[:N]");
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
