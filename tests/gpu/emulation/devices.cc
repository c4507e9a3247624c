// SPDX-License-Identifier: Apache-2.0
// Devices, versions and errors.
#include <cstdio>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/state.h"

namespace dlsim::emulation {
namespace {

constexpr int kVersion = 13000;  // CUDA 13.0

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText& TextOf(cudaError_t error) {
  for (const ErrorText& text : kErrorTexts) {
    if (text.error == error) return text;
  }
  static constexpr ErrorText kNone = {cudaErrorUnknown, "unrecognized error code",
                                      "unrecognized error code"};
  return kNone;
}

bool IsDevice(int device) { return device >= 0 && device < TheState().machine.device_count; }

constexpr int kSharedBytes = 48 * 1024;
constexpr int kSharedBytesOptin = 227 * 1024;
constexpr int kSharedBytesOfMultiprocessor = 228 * 1024;
constexpr int kCacheBytes = 1 << 20;
constexpr int kBusBits = 512;

cudaDeviceProp PropertiesOf(const Machine& machine) {
  cudaDeviceProp properties = {};
  std::snprintf(properties.name, sizeof(properties.name), "%s", machine.device_name.c_str());
  properties.totalGlobalMem = machine.memory_bytes;
  properties.sharedMemPerBlock = kSharedBytes;
  properties.regsPerBlock = 65536;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = 1024;
  properties.major = machine.compute_capability / 10;
  properties.minor = machine.compute_capability % 10;
  properties.multiProcessorCount = machine.multiprocessor_count;
  properties.memoryBusWidth = kBusBits;
  properties.l2CacheSize = kCacheBytes;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.asyncEngineCount = 2;
  properties.sharedMemPerMultiprocessor = kSharedBytesOfMultiprocessor;
  properties.sharedMemPerBlockOptin = kSharedBytesOptin;
  return properties;
}

cudaError_t AttributeOf(const Machine& machine, cudaDeviceAttr attribute, int* value) {
  const cudaDeviceProp properties = PropertiesOf(machine);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return *value = properties.maxThreadsPerBlock, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return *value = kSharedBytes, cudaSuccess;
    case cudaDevAttrWarpSize:
      return *value = properties.warpSize, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = properties.multiProcessorCount, cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      return *value = 1000000, cudaSuccess;  // kHz
    case cudaDevAttrGlobalMemoryBusWidth:
      return *value = kBusBits, cudaSuccess;
    case cudaDevAttrL2CacheSize:
      return *value = kCacheBytes, cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return *value = properties.maxThreadsPerMultiProcessor, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      return *value = properties.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = properties.minor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return *value = kSharedBytesOfMultiprocessor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = kSharedBytesOptin, cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      return *value = 1, cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace dlsim::emulation

using namespace dlsim::emulation;

cudaError_t cudaGetLastError() {
  RuntimeState& state = TheState();
  const std::lock_guard lock(state.mutex);
  const cudaError_t error = state.last_error;
  state.last_error = state.lost;  // a lost device stays lost
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(TheState().mutex);
  return TheState().last_error;
}

const char* cudaGetErrorName(cudaError_t error) { return TextOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return TextOf(error).text; }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  const bool has_driver = TheState().machine.driver != cudaErrorInsufficientDriver;
  *version = has_driver ? kVersion : TheState().machine.old_driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Api("cudaGetDeviceCount", CallKind::kAsk, [&](RuntimeState& state) {
    if (state.machine.device_count == 0) return cudaErrorNoDevice;
    *count = state.machine.device_count;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Api("cudaGetDevice", CallKind::kAsk, [&](RuntimeState& state) {
    if (state.machine.device_count == 0) return cudaErrorNoDevice;
    *device = ThisDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Api("cudaSetDevice", CallKind::kAsk, [&](RuntimeState& state) {
    if (state.machine.device_count == 0) return cudaErrorNoDevice;
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    ThisDevice() = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Api("cudaGetDeviceProperties", CallKind::kAsk, [&](RuntimeState& state) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    *properties = PropertiesOf(state.machine);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Api("cudaDeviceGetAttribute", CallKind::kAsk, [&](RuntimeState& state) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    return AttributeOf(state.machine, attribute, value);
  });
}
