// SPDX-License-Identifier: Apache-2.0
// The option that says where a command computes: on the CPU or on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/app/option_rows.h"
#include "sim/base/device_choice.h"
#include "src/device/compute_device.h"

namespace dlsim::sim {

// Input from which `auto` uses a device: starting CUDA takes some tenths of a second, in which the
// CPU reads and counts about as much. Chosen by that estimate, not measured on a GPU.
inline constexpr uint64_t kAutoDeviceBytes = uint64_t{1} << 30;

// --device.
void VisitDevice(OptionRows& option, DeviceChoice& choice);

// Opens the device for an input of this size in bytes; null is the CPU. For kCuda throws Error
// (exit code 3) if the device is not usable; kAuto then means the CPU.
std::unique_ptr<ComputeDevice> OpenDevice(const DeviceChoice& choice, uint64_t input_bytes);

// Returns the size of a file; 0 if there is none, which whoever opens it will say.
uint64_t BytesOfFile(const std::string& path);

// Tells on standard error what computes, unless it is the CPU.
void NoteDevice(const ComputeDevice* device);

}  // namespace dlsim::sim
