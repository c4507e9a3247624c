// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of the machine. A build without CUDA has none, and opening one is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dlsim {

class ComputeDevice;

namespace gpu {

struct DeviceInfo {
  int index = 0;
  std::string name;            // as the driver gives it
  int compute_capability = 0;  // 10 * major + minor
  uint64_t memory_bytes = 0;
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string problem;  // why there are none: no driver, none visible, built without CUDA
};

// Never throws: a machine without a driver has no devices.
DeviceList Devices();

// Opens a device for replays, profiles and conversions. Throws Error (exit code 3) in one line if
// there is none of that index or if it is unusable.
std::unique_ptr<ComputeDevice> OpenDevice(int index);

}  // namespace gpu
}  // namespace dlsim
