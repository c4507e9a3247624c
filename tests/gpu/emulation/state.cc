// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/emulation/state.h"

#include <stdexcept>

namespace dlsim::emulation {
namespace {

// Counts down to a failure; returns true when it has come.
bool Comes(PendingFailure& failure) { return failure.countdown > 0 && --failure.countdown == 0; }

bool CanFail(CallKind kind) { return kind != CallKind::kAsk && kind != CallKind::kFree; }

void Count(CallKind kind, std::string_view name, RuntimeState& state) {
  const auto found = state.calls.find(name);
  if (found == state.calls.end()) {
    state.calls.emplace(name, 1);
  } else {
    ++found->second;
  }
  if (kind == CallKind::kAllocate || kind == CallKind::kFree) ++state.counts.allocations;
  if (kind == CallKind::kSynchronize) ++state.counts.synchronizations;
}

}  // namespace

RuntimeState& TheState() {
  static RuntimeState state;
  return state;
}

int& ThisDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t BeginCall(std::string_view name, CallKind kind) {
  RuntimeState& state = TheState();
  Count(kind, name, state);
  if (state.machine.driver != cudaSuccess) return state.machine.driver;
  const bool is_meant =
      state.failing_call.name.empty() ? CanFail(kind) : state.failing_call.name == name;
  if (is_meant && Comes(state.failing_call)) {
    state.failed_call = name;
    return state.failing_call.error;
  }
  return CanFail(kind) ? state.lost : cudaSuccess;
}

void Reset(const Machine& machine) {
  RuntimeState& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (Live().total() > 0) throw std::logic_error("Reset: something is still allocated");
  state.machine = machine;
  state.last_error = cudaSuccess;
  state.lost = cudaSuccess;
  state.streams.clear();
  state.shared_limits.clear();
  state.failing_call = {};
  state.failing_kernel = {};
  state.failed_call.clear();
  state.counts = {};
  state.calls.clear();
  ThisDevice() = 0;
  SetThreadOrder(ThreadOrder::kAscending);
}

void FailCall(std::string_view name, uint64_t n, cudaError_t error) {
  TheState().failing_call = {std::string(name), n, error};
  TheState().failed_call.clear();
}

void FailKernel(uint64_t n, cudaError_t error) { TheState().failing_kernel = {"", n, error}; }

std::string FailedCall() { return TheState().failed_call; }

LiveObjects Live() {
  const RuntimeState& state = TheState();
  LiveObjects live;
  for (const auto& [address, allocation] : state.allocations) {
    ++(allocation.place == Place::kDevice ? live.device_allocations : live.host_allocations);
  }
  for (const StreamPointer& stream : state.streams) {
    live.streams += stream->is_alive && !stream->is_default;
  }
  live.events = state.events.size();
  return live;
}

CallCounts Counts() { return TheState().counts; }

uint64_t CountOf(std::string_view name) {
  const auto found = TheState().calls.find(name);
  return found == TheState().calls.end() ? 0 : found->second;
}

}  // namespace dlsim::emulation
