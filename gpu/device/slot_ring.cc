// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/slot_ring.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace dlsim::gpu {
namespace {

constexpr size_t kSmallestBuffer = size_t{1} << 16;

// Powers of two, so that memory grows a few times and no more.
template <class Buffer>
void Grow(size_t bytes, Buffer& buffer) {
  if (bytes <= buffer.size()) return;
  buffer = {};  // first, so that both need not fit
  buffer = Buffer(std::bit_ceil(std::max(bytes, kSmallestBuffer)));
}

}  // namespace

void Slot::Reserve(size_t input_bytes, size_t output_bytes) {
  Grow(input_bytes, host_input_);
  Grow(input_bytes, device_input_);
  Grow(output_bytes, host_output_);
  Grow(output_bytes, device_output_);
}

void Slot::Send(size_t bytes) {
  CheckCuda(cudaMemcpyAsync(device_input_.data(), host_input_.data(), bytes, cudaMemcpyHostToDevice,
                            stream_.get()),
            "cudaMemcpyAsync to the device");
}

void Slot::Fetch(size_t bytes) {
  CheckCuda(cudaMemcpyAsync(host_output_.data(), device_output_.data(), bytes,
                            cudaMemcpyDeviceToHost, stream_.get()),
            "cudaMemcpyAsync from the device");
}

void Slot::Collect() {
  if (!collect_) return;
  CheckCuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  may_run_ = false;
  std::exchange(collect_, nullptr)();
}

Slot& SlotRing::Next(size_t input_bytes, size_t output_bytes) {
  Slot& slot = slots_[next_];
  slot.Collect();
  slot.Reserve(input_bytes, output_bytes);
  slot.may_run_ = true;
  return slot;
}

void SlotRing::Submit(Slot& slot, std::function<void()> collect) {
  slot.collect_ = std::move(collect);
  next_ = (next_ + 1) % kSlots;
}

void SlotRing::Finish() {
  for (size_t i = 0; i < kSlots; ++i) slots_[(next_ + i) % kSlots].Collect();
}

void SlotRing::Abandon() noexcept {
  for (Slot& slot : slots_) {
    if (!slot.may_run_) continue;
    static_cast<void>(cudaStreamSynchronize(slot.stream()));
    slot.collect_ = nullptr;
    slot.may_run_ = false;
  }
  static_cast<void>(cudaGetLastError());
}

}  // namespace dlsim::gpu
