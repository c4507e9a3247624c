// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA devices, and says in one line why one cannot be used.
#include "dlsim/gpu.h"

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "dlsim/error.h"
#include "gpu/base/cuda.h"
#include "gpu/device/cuda_device.h"

namespace dlsim::gpu {
namespace {

constexpr const char* kOption = "--device";

// Does nothing; whether it can be launched shows whether any kernel can.
__global__ void ProbeKernel() {}

// "12.4", of a version as CUDA has it: 12040.
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string ProblemOf(cudaError_t status) {
  if (status == cudaErrorNoDevice) return "no CUDA device is visible";
  if (status != cudaErrorInsufficientDriver) return cudaGetErrorString(status);
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));  // 0 without a driver
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return "no NVIDIA driver is installed";
  return "the NVIDIA driver is too old: it is for CUDA " + VersionText(driver) +
         ", and this dlsim for CUDA " + VersionText(runtime);
}

// Takes the error from the runtime, so that the next call starts clean.
cudaError_t Cleared(cudaError_t status) {
  static_cast<void>(cudaGetLastError());
  return status;
}

std::string NameOf(int index) { return "cuda:" + std::to_string(index); }

std::string NameOf(const DeviceInfo& info) { return NameOf(info.index) + " (" + info.name + ")"; }

cudaError_t RunProbe() {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  const cudaError_t launched = cudaLaunchKernelEx(&config, ProbeKernel);
  return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

void RequireKernels(const DeviceInfo& info) {
  const cudaError_t status = RunProbe();
  if (status == cudaSuccess) return;
  Cleared(status);
  if (status == cudaErrorNoKernelImageForDevice) {
    const std::string capability = std::to_string(info.compute_capability / 10) + "." +
                                   std::to_string(info.compute_capability % 10);
    throw InputError(kOption, "this dlsim holds no code for the compute capability " + capability +
                                  " of " + Printable(NameOf(info)));
  }
  throw InputError(kOption, "cannot use " + Printable(NameOf(info)) + ": " +
                                std::string(cudaGetErrorString(status)));
}

}  // namespace

DeviceList Devices() {
  DeviceList list;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count == 0) status = cudaErrorNoDevice;
  for (int index = 0; status == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties = {};
    status = cudaGetDeviceProperties(&properties, index);
    list.devices.push_back({index, properties.name, 10 * properties.major + properties.minor,
                            properties.totalGlobalMem});
  }
  if (status != cudaSuccess) return {{}, ProblemOf(Cleared(status))};
  return list;
}

std::unique_ptr<ComputeDevice> OpenDevice(int index) {
  const DeviceList list = Devices();
  if (list.devices.empty()) {
    throw InputError(kOption, list.problem, "a CUDA device, or --device cpu", NameOf(index));
  }
  const int last = list.devices.back().index;
  if (index < 0 || index > last) {
    throw InputError(kOption, "no such device",
                     last == 0 ? NameOf(0) : NameOf(0) + " to " + NameOf(last), NameOf(index));
  }
  const DeviceInfo& info = list.devices[static_cast<size_t>(index)];
  try {
    const CurrentDevice current(index);
    RequireKernels(info);
    return std::make_unique<CudaDevice>(index, NameOf(info));
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(kOption)) throw;
    throw InputError(kOption, "cannot use " + Printable(NameOf(info)) + ": " + error.what());
  }
}

}  // namespace dlsim::gpu
