// SPDX-License-Identifier: Apache-2.0
// All bytes to a descriptor, which may be a pipe or a device.
#pragma once

#include <string_view>

namespace dlsim::sim {

// Writes all of them, however often a signal interrupts it or a pipe is full. False if the device
// is full or gone; errno says why.
bool WriteBytes(int descriptor, std::string_view bytes);

}  // namespace dlsim::sim
