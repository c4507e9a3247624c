// SPDX-License-Identifier: Apache-2.0
// Streams: queues of work that is done when something waits for it.
#include <algorithm>
#include <utility>

#include "include/cuda_runtime.h"
#include "tests/gpu/emulation/state.h"

namespace dlsim::emulation {
namespace {

void Push(CUstream_st& stream, std::function<void()> work) {
  stream.work.push_back(std::move(work));
  ++stream.enqueued;
}

// Makes later work of `stream` wait for all that `other` now has.
void PushWait(CUstream_st& stream, const StreamPointer& other) {
  if (other->work.empty()) return;
  Push(stream, [other, position = other->enqueued] { RunStream(other, position); });
}

}  // namespace

StreamPointer DefaultStream(int device) {
  RuntimeState& state = TheState();
  for (const StreamPointer& stream : state.streams) {
    if (stream->is_default && stream->device == device) return stream;
  }
  const auto stream = std::make_shared<CUstream_st>();
  stream->device = device;
  stream->is_default = true;
  state.streams.push_back(stream);
  return stream;
}

StreamPointer FindStream(cudaStream_t handle) {
  if (handle == nullptr) return DefaultStream(ThisDevice());
  for (const StreamPointer& stream : TheState().streams) {
    if (stream.get() == handle && stream->is_alive) return stream;
  }
  return nullptr;
}

void Enqueue(const StreamPointer& stream, std::function<void()> work) {
  if (stream->is_default) {
    for (const StreamPointer& other : TheState().streams) {
      if (other->device == stream->device && other->waits_for_default) PushWait(*stream, other);
    }
  } else if (stream->waits_for_default) {
    PushWait(*stream, DefaultStream(stream->device));
  }
  Push(*stream, std::move(work));
}

void RunStream(const StreamPointer& stream, uint64_t position) {
  while (stream->begun < position && !stream->work.empty()) {
    const std::function<void()> work = std::move(stream->work.front());
    stream->work.pop_front();
    ++stream->begun;
    if (TheState().lost == cudaSuccess) work();
  }
}

void RunStream(const StreamPointer& stream) { RunStream(stream, stream->enqueued); }

void RunDevice(int device) {
  RuntimeState& state = TheState();
  const std::vector<StreamPointer> streams = state.streams;
  for (const StreamPointer& stream : streams) {
    if (stream->device == device) RunStream(stream);
  }
  std::erase_if(state.streams, [](const StreamPointer& stream) {
    return !stream->is_alive && stream->work.empty();
  });
}

}  // namespace dlsim::emulation

using namespace dlsim::emulation;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return Api("cudaStreamCreate", CallKind::kAllocate, [&](RuntimeState& state) {
    if (flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    const auto stream = std::make_shared<CUstream_st>();
    stream->device = ThisDevice();
    stream->waits_for_default = flags == cudaStreamDefault;
    state.streams.push_back(stream);
    *handle = stream.get();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return Api("cudaStreamDestroy", CallKind::kFree, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(handle);
    if (handle == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
    // The call does not wait: what is left is done later.
    stream->is_alive = false;
    if (stream->work.empty()) std::erase(state.streams, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Api("cudaStreamSynchronize", CallKind::kSynchronize, [&](RuntimeState&) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    RunStream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return Api("cudaDeviceSynchronize", CallKind::kSynchronize, [&](RuntimeState&) {
    RunDevice(ThisDevice());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Api("cudaStreamQuery", CallKind::kAsk, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->work.empty()) return state.lost;
    // Whoever asks again and again must see progress.
    RunStream(stream, stream->begun + 1);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  return Api("cudaStreamWaitEvent", CallKind::kEnqueue, [&](RuntimeState& state) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr || !state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorInvalidValue;
    const auto recording = event->recording;
    if (recording == nullptr || recording->is_done) return cudaSuccess;
    Enqueue(stream, [recording] { RunStream(recording->stream, recording->position); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Api("cudaStreamIsCapturing", CallKind::kAsk, [&](RuntimeState&) {
    if (FindStream(handle) == nullptr) return cudaErrorInvalidResourceHandle;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, void (*function)(void*), void* argument) {
  return Api("cudaLaunchHostFunc", CallKind::kEnqueue, [&](RuntimeState&) {
    const StreamPointer stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    Enqueue(stream, [function, argument] { function(argument); });
    return cudaSuccess;
  });
}
