// SPDX-License-Identifier: Apache-2.0
// Allocations of device memory and of pinned host memory.
#include <cstdlib>
#include <cstring>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/state.h"

#if defined(__SANITIZE_ADDRESS__)
#define DLSIM_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DLSIM_ADDRESS_SANITIZER
#endif
#endif
#ifdef DLSIM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace dlsim::emulation {
namespace {

constexpr int kUninitialized = 0xCD;
constexpr size_t kAlignment = 256;

enum class Access { kForbidden, kAllowed };

void SetAccess([[maybe_unused]] const std::byte* memory, [[maybe_unused]] size_t bytes,
               [[maybe_unused]] Access access) {
#ifdef DLSIM_ADDRESS_SANITIZER
  if (access == Access::kAllowed) {
    __asan_unpoison_memory_region(memory, bytes);
  } else {
    __asan_poison_memory_region(memory, bytes);
  }
#endif
}

void SetAccessOf(int device, Access access) {
  for (const auto& [address, allocation] : TheState().allocations) {
    if (allocation.place != Place::kDevice || allocation.device != device) continue;
    SetAccess(address, allocation.bytes, access);
  }
}

size_t UsedBytes(int device) {
  size_t bytes = 0;
  for (const auto& [address, allocation] : TheState().allocations) {
    if (allocation.place == Place::kDevice && allocation.device == device)
      bytes += allocation.bytes;
  }
  return bytes;
}

cudaError_t Allocate(Place place, void** memory, size_t bytes) {
  if (memory == nullptr) return cudaErrorInvalidValue;
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  RuntimeState& state = TheState();
  const int device = ThisDevice();
  if (place == Place::kDevice && bytes > state.machine.memory_bytes - UsedBytes(device)) {
    return cudaErrorMemoryAllocation;
  }
  // Of exactly this size, so that the address sanitizer finds what is out of bounds.
  if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, kUninitialized, bytes);
  const std::byte* const begin = static_cast<const std::byte*>(*memory);
  state.allocations[begin] = {place, device, bytes};
  if (place == Place::kDevice) SetAccess(begin, bytes, Access::kForbidden);
  return cudaSuccess;
}

// Returns the allocation that begins at `memory`, or one past the last of all.
auto FindBeginning(Place place, const void* memory) {
  RuntimeState& state = TheState();
  const auto found = state.allocations.find(static_cast<const std::byte*>(memory));
  const bool is_there = found != state.allocations.end() && found->second.place == place;
  return is_there ? found : state.allocations.end();
}

cudaError_t Free(Place place, const void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const auto found = FindBeginning(place, memory);
  if (found == TheState().allocations.end()) return cudaErrorInvalidValue;
  // Freeing waits for all that might still use the memory.
  RunDevice(found->second.device);
  FreeAllocation(found);
  return cudaSuccess;
}

}  // namespace

std::map<const std::byte*, Allocation>::iterator FindAllocation(const void* pointer) {
  RuntimeState& state = TheState();
  const std::byte* const address = static_cast<const std::byte*>(pointer);
  auto found = state.allocations.upper_bound(address);
  if (found == state.allocations.begin()) return state.allocations.end();
  --found;
  return address < found->first + found->second.bytes ? found : state.allocations.end();
}

void FreeAllocation(std::map<const std::byte*, Allocation>::iterator allocation) {
  std::byte* const memory = const_cast<std::byte*>(allocation->first);
  const size_t bytes = allocation->second.bytes;
  TheState().allocations.erase(allocation);
  SetAccess(memory, bytes, Access::kAllowed);
  std::memset(memory, kUninitialized, bytes);
  std::free(memory);
}

void AllowKernel(int device) {
  int& kernel_device = TheState().kernel_device;
  if (kernel_device == device) return;
  ForbidKernels();
  SetAccessOf(device, Access::kAllowed);
  kernel_device = device;
}

void ForbidKernels() {
  int& kernel_device = TheState().kernel_device;
  if (kernel_device < 0) return;
  SetAccessOf(kernel_device, Access::kForbidden);
  kernel_device = -1;
}

RangeAccess::RangeAccess(const void* begin, size_t bytes) : begin_(begin), bytes_(bytes) {
  const auto found = FindAllocation(begin);
  if (found == TheState().allocations.end() || found->second.place != Place::kDevice ||
      found->second.device == TheState().kernel_device) {
    bytes_ = 0;
  }
  if (bytes_ > 0) SetAccess(static_cast<const std::byte*>(begin_), bytes_, Access::kAllowed);
}

RangeAccess::~RangeAccess() {
  if (bytes_ > 0) SetAccess(static_cast<const std::byte*>(begin_), bytes_, Access::kForbidden);
}

}  // namespace dlsim::emulation

using namespace dlsim::emulation;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return Api("cudaMalloc", CallKind::kAllocate,
             [&](RuntimeState&) { return Allocate(Place::kDevice, memory, bytes); });
}

cudaError_t cudaFree(void* memory) {
  return Api("cudaFree", CallKind::kFree,
             [&](RuntimeState&) { return Free(Place::kDevice, memory); });
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return Api("cudaMallocAsync", CallKind::kAllocate, [&](RuntimeState&) {
    if (FindStream(stream) == nullptr) return cudaErrorInvalidResourceHandle;
    return Allocate(Place::kDevice, memory, bytes);
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return Api("cudaFreeAsync", CallKind::kFree, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (memory == nullptr) return cudaSuccess;
    if (FindBeginning(Place::kDevice, memory) == state.allocations.end()) {
      return cudaErrorInvalidValue;
    }
    Enqueue(stream, [memory] { FreeAllocation(FindBeginning(Place::kDevice, memory)); });
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return Api("cudaHostAlloc", CallKind::kAllocate, [&](RuntimeState&) {
    constexpr unsigned kKnown =
        cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    return Allocate(Place::kPinned, memory, bytes);
  });
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return Api("cudaMallocHost", CallKind::kAllocate,
             [&](RuntimeState&) { return Allocate(Place::kPinned, memory, bytes); });
}

cudaError_t cudaFreeHost(void* memory) {
  return Api("cudaFreeHost", CallKind::kFree,
             [&](RuntimeState&) { return Free(Place::kPinned, memory); });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Api("cudaMemGetInfo", CallKind::kAsk, [&](RuntimeState& state) {
    *total = state.machine.memory_bytes;
    *free = *total - UsedBytes(ThisDevice());
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return Api("cudaPointerGetAttributes", CallKind::kAsk, [&](RuntimeState& state) {
    constexpr int kNoDevice = -2;
    void* const address = const_cast<void*>(pointer);
    *attributes = {cudaMemoryTypeUnregistered, kNoDevice, nullptr, address};
    const auto found = FindAllocation(pointer);
    if (found == state.allocations.end()) return cudaSuccess;
    const bool is_device = found->second.place == Place::kDevice;
    *attributes = {is_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost, found->second.device,
                   address, is_device ? nullptr : address};
    return cudaSuccess;
  });
}
