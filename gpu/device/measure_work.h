// SPDX-License-Identifier: Apache-2.0
// Measures a step on a device.
#pragma once

#include <functional>
#include <vector>

#include "gpu/device/slot_ring.h"
#include "gpu/device/step_batch.h"
#include "gpu/measure/measure_kernels.h"
#include "src/device/compute_device.h"

namespace dlsim::gpu {

class MeasureWork final : public DeviceWork {
 public:
  using OnAnswer = std::function<void(size_t tensor, const BlockAnswer& answer)>;

  // All must live as long as this.
  MeasureWork(int device, SlotRing& slots, const StepWork& work, OnAnswer on_answer);

  void Add(std::span<const Block> blocks) override;
  void Finish() override;

 private:
  struct Input;
  struct Output;

  void Send(const StepBatch& batch);
  void Fill(const StepBatch& batch, const Input& input, const Slot& slot) const;
  std::vector<DeviceQuestion> QuestionsOf(const Input& input, const Slot& slot) const;
  void Deliver(std::span<const size_t> tensors, const Output& output, std::byte* results) const;

  int device_;
  SlotUse slots_;
  const StepWork work_;
  OnAnswer on_answer_;
  bool has_details_ = false, has_tensor_scales_ = false, is_stochastic_ = false;
};

}  // namespace dlsim::gpu
