// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/counter_store.h"

#include <algorithm>
#include <bit>

namespace dlsim::gpu {
namespace {

constexpr size_t kFewestPieces = 64;

}  // namespace

void CounterStore::Use(const HistogramEdges& edges) {
  if (edges_ != nullptr && *edges_ == edges) return;
  Clear();
  edges_ = std::make_unique<const HistogramEdges>(edges);
}

// Powers of two, so that memory grows a few times and no more.
WaveCounter& CounterStore::Of(size_t slot, size_t pieces) {
  OfSlot& of_slot = slots_[slot];
  if (!of_slot.counter || of_slot.most_pieces < pieces) {
    of_slot.counter.reset();  // first, so that both need not fit
    of_slot.most_pieces = std::bit_ceil(std::max(pieces, kFewestPieces));
    of_slot.counter.emplace(*edges_, of_slot.most_pieces);
  }
  return *of_slot.counter;
}

void CounterStore::Clear() {
  for (OfSlot& slot : slots_) slot.counter.reset();
}

}  // namespace dlsim::gpu
