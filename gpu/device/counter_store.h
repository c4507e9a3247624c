// SPDX-License-Identifier: Apache-2.0
// The counters of the slots, kept from step to step while the edges stay the same.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "dlsim/histogram.h"
#include "gpu/count/wave_counter.h"
#include "gpu/device/slot_ring.h"

namespace dlsim::gpu {

class CounterStore {
 public:
  // From now on counts between these edges. Nothing may be running.
  void Use(const HistogramEdges& edges);

  // Returns the counter of an idle slot, with room for at least `pieces` pieces.
  WaveCounter& Of(size_t slot, size_t pieces);

  // Drops all counters with what they hold.
  void Clear();

 private:
  struct OfSlot {
    std::optional<WaveCounter> counter;
    size_t most_pieces = 0;
  };

  std::unique_ptr<const HistogramEdges> edges_;  // which the counters refer to
  std::array<OfSlot, SlotRing::kSlots> slots_;
};

}  // namespace dlsim::gpu
