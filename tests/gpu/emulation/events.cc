// SPDX-License-Identifier: Apache-2.0
// Events: points in streams.
#include <memory>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/state.h"

using namespace dlsim::emulation;

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return Api("cudaEventCreate", CallKind::kAllocate, [&](RuntimeState& state) {
    if (flags > (cudaEventBlockingSync | cudaEventDisableTiming)) return cudaErrorInvalidValue;
    auto event = std::make_unique<CUevent_st>();
    event->device = ThisDevice();
    event->has_timing = (flags & cudaEventDisableTiming) == 0;
    *handle = event.get();
    state.events[*handle] = std::move(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Api("cudaEventDestroy", CallKind::kFree, [&](RuntimeState& state) {
    return state.events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return Api("cudaEventRecord", CallKind::kEnqueue, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr || !state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
    const auto recording = std::make_shared<Recording>();
    recording->stream = stream;
    Enqueue(stream, [recording] {
      recording->is_done = true;
      recording->time = std::chrono::steady_clock::now();
    });
    recording->position = stream->enqueued;
    event->recording = recording;
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Api("cudaEventSynchronize", CallKind::kSynchronize, [&](RuntimeState& state) {
    if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    const auto recording = event->recording;
    if (recording != nullptr) RunStream(recording->stream, recording->position);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Api("cudaEventQuery", CallKind::kAsk, [&](RuntimeState& state) {
    if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    const auto recording = event->recording;
    if (recording == nullptr || recording->is_done) return state.lost;
    // Whoever asks again and again must see progress.
    RunStream(recording->stream, recording->stream->begun + 1);
    return state.lost != cudaSuccess ? state.lost : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return Api("cudaEventElapsedTime", CallKind::kAsk, [&](RuntimeState& state) {
    for (const cudaEvent_t event : {begin, end}) {
      if (!state.events.contains(event) || !event->has_timing || event->recording == nullptr) {
        return cudaErrorInvalidResourceHandle;
      }
      if (!event->recording->is_done) return cudaErrorNotReady;
    }
    const std::chrono::duration<float, std::milli> elapsed =
        end->recording->time - begin->recording->time;
    *milliseconds = elapsed.count();
    return cudaSuccess;
  });
}
