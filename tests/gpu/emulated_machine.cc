// SPDX-License-Identifier: Apache-2.0
// Sets up the emulated machine of a program by its environment, before main: EMULATED_DEVICES is
// the number of devices (default 1), EMULATED_KIB the memory of each, EMULATED_DRIVER=none is a
// machine without a driver, and EMULATED_FAILURE=CALL:N makes the N-th call of that name find too
// little memory.
#include <cstdlib>
#include <string>

#include "emulation.h"

namespace dlsim::emulation {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool SetUp() {
  Machine machine;
  const std::string devices = Variable("EMULATED_DEVICES"), kib = Variable("EMULATED_KIB");
  if (!devices.empty()) machine.device_count = std::stoi(devices);
  if (!kib.empty()) machine.memory_bytes = std::stoull(kib) << 10;
  if (Variable("EMULATED_DRIVER") == "none") machine.driver = cudaErrorInsufficientDriver;
  Reset(machine);
  const std::string failure = Variable("EMULATED_FAILURE");
  const size_t colon = failure.find(':');
  if (colon != std::string::npos) {
    FailCall(failure.substr(0, colon), std::stoull(failure.substr(colon + 1)),
             cudaErrorMemoryAllocation);
  }
  return true;
}

[[maybe_unused]] const bool is_set_up = SetUp();

}  // namespace
}  // namespace dlsim::emulation
