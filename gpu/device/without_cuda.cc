// SPDX-License-Identifier: Apache-2.0
// Replaces dlsim::gpu in a build without CUDA.
#include <string>

#include "dlsim/error.h"
#include "dlsim/gpu.h"
#include "src/device/compute_device.h"

namespace dlsim::gpu {
namespace {

constexpr const char* kProblem = "this dlsim was built without CUDA";

}  // namespace

DeviceList Devices() { return {{}, kProblem}; }

std::unique_ptr<ComputeDevice> OpenDevice(int index) {
  throw InputError("--device", kProblem, "a build with -DDLSIM_ENABLE_CUDA=ON, or --device cpu",
                   "cuda:" + std::to_string(index));
}

}  // namespace dlsim::gpu
