// SPDX-License-Identifier: Apache-2.0
// Counts a step on a device.
#pragma once

#include <span>

#include "gpu/device/counter_store.h"
#include "gpu/device/slot_ring.h"
#include "gpu/device/step_batch.h"
#include "src/device/compute_device.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

class CountWork final : public DeviceWork {
 public:
  // All must live as long as this.
  CountWork(int device, SlotRing& slots, CounterStore& counters, const StepWork& work,
            const HistogramEdges& edges, std::span<HistogramSums> sums);
  ~CountWork() override;

  void Add(std::span<const Block> blocks) override;
  void Finish() override;

 private:
  void Send(const StepBatch& batch);
  void WritePieces(const StepBatch& batch, const std::byte* staged, Piece* to) const;

  int device_;
  CounterStore& counters_;
  SlotUse slots_;
  const StepWork work_;
  std::span<HistogramSums> sums_;  // [tensor * part_count + part]
  size_t table_bytes_;             // of one piece, at most
  bool finished_ = true;
};

}  // namespace dlsim::gpu
