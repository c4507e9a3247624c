// SPDX-License-Identifier: Apache-2.0
// Copies and fills of memory.
#include <cstring>
#include <memory>
#include <vector>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/state.h"

namespace dlsim::emulation {
namespace {

enum class Range { kPageable, kPinned, kDevice, kBad };

// Returns where a range lies; one that leaves its allocation is bad.
Range Classify(const void* begin, size_t bytes) {
  if (begin == nullptr) return Range::kBad;
  const auto found = FindAllocation(begin);
  if (found == TheState().allocations.end()) return Range::kPageable;
  const std::byte* const end = found->first + found->second.bytes;
  const size_t room = static_cast<size_t>(end - static_cast<const std::byte*>(begin));
  if (bytes > room) return Range::kBad;
  return found->second.place == Place::kDevice ? Range::kDevice : Range::kPinned;
}

bool Suits(cudaMemcpyKind kind, Range to, Range from) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return to != Range::kDevice && from != Range::kDevice;
    case cudaMemcpyHostToDevice:
      return to == Range::kDevice && from != Range::kDevice;
    case cudaMemcpyDeviceToHost:
      return to != Range::kDevice && from == Range::kDevice;
    case cudaMemcpyDeviceToDevice:
      return to == Range::kDevice && from == Range::kDevice;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

void CopyNow(void* to, const void* from, size_t bytes) {
  const RangeAccess write_access(to, bytes);
  const RangeAccess read_access(from, bytes);
  std::memmove(to, from, bytes);
}

enum class Waiting { kNo, kYes };

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle,
                 Waiting waiting) {
  const StreamPointer stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Range target = Classify(to, bytes);
  const Range source = Classify(from, bytes);
  if (target == Range::kBad || source == Range::kBad) return cudaErrorInvalidValue;
  if (!Suits(kind, target, source)) return cudaErrorInvalidValue;
  CallCounts& counts = TheState().counts;
  ++counts.copies;
  counts.pageable_copies += target == Range::kPageable || source == Range::kPageable;
  if (source == Range::kPageable) {
    // Through a buffer of the driver's, into which the call copies. No call waits until that has
    // reached the device.
    if (waiting == Waiting::kYes) RunStream(stream);
    const std::byte* const begin = static_cast<const std::byte*>(from);
    const auto staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
    Enqueue(stream, [to, staged] { CopyNow(to, staged->data(), staged->size()); });
  } else {
    Enqueue(stream, [to, from, bytes] { CopyNow(to, from, bytes); });
  }
  if (target == Range::kPageable && waiting == Waiting::kNo) ++counts.synchronizations;
  const bool returns_early = source == Range::kPageable && target == Range::kDevice;
  if (target == Range::kPageable || (waiting == Waiting::kYes && !returns_early)) {
    RunStream(stream);
  }
  return cudaSuccess;
}

cudaError_t Fill(void* to, int value, size_t bytes, cudaStream_t handle) {
  const StreamPointer stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Range range = Classify(to, bytes);
  if (range != Range::kDevice && range != Range::kPinned) return cudaErrorInvalidValue;
  ++TheState().counts.copies;
  Enqueue(stream, [to, value, bytes] {
    const RangeAccess access(to, bytes);
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

}  // namespace
}  // namespace dlsim::emulation

using namespace dlsim::emulation;

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Api("cudaMemcpy", CallKind::kSynchronize,
             [&](RuntimeState&) { return Copy(to, from, bytes, kind, nullptr, Waiting::kYes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Api("cudaMemcpyAsync", CallKind::kEnqueue,
             [&](RuntimeState&) { return Copy(to, from, bytes, kind, stream, Waiting::kNo); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return Api("cudaMemset", CallKind::kEnqueue,
             [&](RuntimeState&) { return Fill(to, value, bytes, nullptr); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Api("cudaMemsetAsync", CallKind::kEnqueue,
             [&](RuntimeState&) { return Fill(to, value, bytes, stream); });
}
