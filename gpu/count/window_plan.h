// SPDX-License-Identifier: Apache-2.0
// How values are counted in shared memory, for edges that repeat from binade to binade. Phases (see
// PeriodicPlan) cut a binade into ranks. Of these, the three that hold most values have slots, with
// cells of their own for each lane; a few more have cells that lanes share; values of the others
// are added to the table in global memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dlsim/histogram.h"
#include "gpu/base/device_buffer.h"

namespace dlsim::gpu {

struct WindowPlan {
  static constexpr uint32_t kCells = 128;  // equal parts of a binade
  static constexpr uint32_t kCellShift = 16;
  static constexpr uint32_t kRanks = 64;
  static constexpr uint32_t kSlots = 3;
  static constexpr uint32_t kShared = 16;
  static constexpr uint32_t kNoSlot = 0x100;  // in cells
  // Codes of ranks: below kSlots the slot; from kFirstShared on the shared cell; or none.
  static constexpr uint32_t kFirstShared = kSlots;
  static constexpr uint32_t kNoCell = kFirstShared + kShared;

  // slot - (center << 9) of parts that lie in the rank of a slot as a whole, modulo 2^32; so that
  // adding bits << 9 leaves the distance from the center above the slot.
  uint32_t cells[kCells];
  uint32_t phases[kRanks];   // where rank i + 1 begins; ascending, the rest ~0
  uint32_t centers[kRanks];  // mantissas from which distances are counted
  uint32_t codes[kRanks];
  uint32_t ranks_of_codes[kNoCell];
};

// Distances from a center are so small that small counters hold sums of their squares.
inline constexpr uint32_t kMostRankWidth = 5900000;

struct HostWindowPlan {
  WindowPlan plan;
  std::vector<uint32_t> bins;  // [exponent * kRanks + rank]
};

// Returns nothing if the edges do not repeat, or not so that few values are left over.
std::optional<HostWindowPlan> MakeWindowPlan(const HistogramEdges& edges);

}  // namespace dlsim::gpu
