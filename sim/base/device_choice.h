// SPDX-License-Identifier: Apache-2.0
// Where to compute, as users write it: on the CPU or on a CUDA device.
#pragma once

#include <cstdint>
#include <string>

namespace dlsim::sim {

struct DeviceChoice {
  enum class Kind : uint8_t { kAuto, kCpu, kCuda };

  Kind kind = Kind::kAuto;
  int index = 0;  // of kCuda
};

// Returns what "auto", "cpu", "cuda" or "cuda:N" means; throws UsageError for other texts.
DeviceChoice ParseDevice(const std::string& text);

}  // namespace dlsim::sim
