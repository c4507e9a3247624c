// SPDX-License-Identifier: Apache-2.0
// Launches of kernels and limits of what a launch may ask for.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/state.h"

namespace dlsim::emulation {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocks = 0x7fffffff;
constexpr size_t kSharedBytes = 48 * 1024;
constexpr size_t kSharedBytesOptin = 227 * 1024;
constexpr size_t kSharedBytesOfMultiprocessor = 228 * 1024;
constexpr int kThreadsOfMultiprocessor = 2048;
constexpr int kBlocksOfMultiprocessor = 32;

size_t SharedLimit(const void* kernel) {
  const auto& limits = TheState().shared_limits;
  const auto found = limits.find({ThisDevice(), kernel});
  return found == limits.end() ? kSharedBytes : found->second;
}

std::string NameOf(const cudaLaunchConfig_t& config, const char* parameters, uint64_t number) {
  // Compilers write "...[with Parameters = {int}]" or "...[Parameters = <int>]".
  std::string types = parameters;
  types = types.substr(types.rfind(" = ") + 3);
  types.pop_back();
  return "launch " + std::to_string(number) + " of a kernel with parameters " + types + ", <<<" +
         std::to_string(config.gridDim.x) + ", " + std::to_string(config.blockDim.x) + ">>>";
}

cudaError_t Check(const cudaLaunchConfig_t& config, const StreamPointer& stream,
                  const void* kernel) {
  if (kernel == nullptr || config.numAttrs != 0) return cudaErrorInvalidValue;
  if (stream == nullptr || stream->device != ThisDevice()) return cudaErrorInvalidResourceHandle;
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) return cudaErrorNotSupported;
  if (grid.x == 0 || grid.x > kMostBlocks) return cudaErrorInvalidConfiguration;
  if (block.x == 0 || block.x > kMostThreads) return cudaErrorInvalidConfiguration;
  if (config.dynamicSmemBytes > SharedLimit(kernel)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

// A kernel can use memory of its own device and pinned memory, and nothing else.
bool AreUsable(const std::vector<const void*>& pointers, int device) {
  return std::all_of(pointers.begin(), pointers.end(), [&](const void* pointer) {
    if (pointer == nullptr) return true;
    const auto found = FindAllocation(pointer);
    if (found == TheState().allocations.end()) return false;
    return found->second.place == Place::kPinned || found->second.device == device;
  });
}

void RunKernel(const Grid& grid, const std::vector<const void*>& pointers, int device) {
  RuntimeState& state = TheState();
  if (state.failing_kernel.countdown > 0 && --state.failing_kernel.countdown == 0) {
    state.lost = state.failing_kernel.error;
    return;
  }
  // What is left in streams after a crash is not done.
  state.lost = cudaErrorLaunchFailure;
  if (!AreUsable(pointers, device)) {
    throw std::logic_error(grid.name + ": a pointer is to no memory of device " +
                           std::to_string(device));
  }
  AllowKernel(device);
  Runner().Run(grid);
  state.lost = cudaSuccess;
}

}  // namespace

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, KernelLaunch launch) {
  return Api("cudaLaunchKernelEx", CallKind::kEnqueue, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(config.stream);
    const cudaError_t problem = Check(config, stream, launch.kernel);
    if (problem != cudaSuccess) return problem;
    ++state.counts.launches;
    const Grid grid = {config.gridDim, config.blockDim, config.dynamicSmemBytes,
                       NameOf(config, launch.parameters, state.counts.launches),
                       std::move(launch.run_thread)};
    Enqueue(stream, [grid, pointers = std::move(launch.pointers), device = stream->device] {
      RunKernel(grid, pointers, device);
    });
    return cudaSuccess;
  });
}

cudaError_t SetFunctionAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return Api("cudaFuncSetAttribute", CallKind::kEnqueue, [&](RuntimeState& state) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > kSharedBytesOptin) return cudaErrorInvalidValue;
    state.shared_limits[{ThisDevice(), function}] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t BlocksPerMultiprocessor(int* blocks, int threads, size_t shared_bytes) {
  return Api("cudaOccupancyMaxActiveBlocksPerMultiprocessor", CallKind::kAsk, [&](RuntimeState&) {
    if (threads <= 0) return cudaErrorInvalidValue;
    constexpr size_t kReserved = 1024;  // of each block's shared memory
    const size_t by_memory = kSharedBytesOfMultiprocessor / (shared_bytes + kReserved);
    const int by_threads =
        static_cast<unsigned>(threads) > kMostThreads ? 0 : kThreadsOfMultiprocessor / threads;
    *blocks = std::min({static_cast<int>(by_memory), by_threads, kBlocksOfMultiprocessor});
    return cudaSuccess;
  });
}

}  // namespace dlsim::emulation
