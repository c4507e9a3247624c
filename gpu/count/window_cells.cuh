// SPDX-License-Identifier: Apache-2.0
// Cells of a window of binades in shared memory: how values are added to them, and how a block of
// threads takes their sums out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/base/piece.h"
#include "gpu/count/count_atomics.cuh"
#include "gpu/count/shared_memory.cuh"
#include "gpu/count/window_element.cuh"

namespace dlsim::gpu {

inline constexpr uint32_t kWindowThreads = 1024;

struct WindowArguments {
  const Piece* pieces = nullptr;
  const uint32_t* table_of_piece = nullptr;
  uint32_t piece_count = 0;
  DeviceEdges edges;  // with a plan
  CountTables tables;
};
static_assert(sizeof(WindowArguments) % 8 == 0);

// Where things lie in shared memory, in words. Of a slot's cells, a row of 32 words holds one word
// for each lane, so that lanes never wait for each other. Rows of negative values are 256 rows
// after those of positive ones, which is where adding the sign bit as a part of the exponent leads.
// The shared cells, which lanes may contend for, and queues fill the gaps that this leaves.
struct WindowLayout {
  static constexpr uint32_t kRow = 32;
  static constexpr uint32_t kSlot = Window::kBinades * kRow;
  static constexpr uint32_t kSign = 256 * kRow;
  static constexpr uint32_t kWord = 2 * kSign;  // from one word of a cell to the next
  static constexpr uint32_t kSharedCells = WindowPlan::kSlots * kSlot;
  static constexpr uint32_t kTrash = kSign + kSharedCells;  // cells that nobody reads
  static constexpr uint32_t kEarlyQueues = kTrash + kRow;   // and kWord later as many
  static constexpr uint32_t kParts = 2 * kWord + kTrash + kRow;
  static constexpr uint32_t kQueue = 10 * kRow;  // of a warp
  static constexpr uint32_t kQueuesInGap = (kSlot - kRow) / kQueue;
  static constexpr uint32_t kLateQueues = kParts + WindowPlan::kCells * kRow;
  static constexpr uint32_t kWarps = kWindowThreads / 32;
  static constexpr uint32_t kPhases = kLateQueues + (kWarps - 2 * kQueuesInGap) * kQueue;
  static constexpr uint32_t kCentres = kPhases + WindowPlan::kRanks;
  static constexpr uint32_t kCodes = kCentres + WindowPlan::kRanks;
  static constexpr uint32_t kSums = kCodes + WindowPlan::kRanks;  // of the block
  static constexpr uint32_t kArguments = kSums + 4;               // of the kernel
  static constexpr uint32_t kWords = kArguments + sizeof(WindowArguments) / 4;
  static_assert(2 * Window::kBinades * WindowPlan::kShared <= kSlot);
  static_assert(4 * kWords <= 227 * 1024, "more than a block may have of an H100's");

  DLSIM_HOST_DEVICE static uint32_t QueueOf(uint32_t warp) {
    if (warp < kQueuesInGap) return kEarlyQueues + warp * kQueue;
    if (warp < 2 * kQueuesInGap) return kWord + kEarlyQueues + (warp - kQueuesInGap) * kQueue;
    return kLateQueues + (warp - 2 * kQueuesInGap) * kQueue;
  }
  DLSIM_HOST_DEVICE static uint32_t SharedCell(uint32_t bits_less_low, uint32_t cell) {
    const uint32_t binade = bits_less_low >> 23 & (Window::kBinades - 1);
    return kSharedCells + (binade * 2 + (bits_less_low >> 31)) * WindowPlan::kShared + cell;
  }
};

// The shared memory. Asked for again wherever it is used, so that the compiler knows that it is.
__device__ inline uint32_t* Words() { return DynamicShared<uint32_t>(); }
__device__ inline const WindowArguments& Arguments() {
  return *reinterpret_cast<const WindowArguments*>(Words() + WindowLayout::kArguments);
}

// Shared memory by the addresses in bytes that its instructions take, as calculations with pointers
// cost as much as all else. kOffset is in words.
__device__ inline uint32_t SharedBase() {
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(__cvta_generic_to_shared(Words()));
#else
  return 0;
#endif
}

template <uint32_t kOffset>
__device__ inline void AddToShared(uint32_t address, uint32_t term) {
#ifdef __CUDA_ARCH__
  asm volatile("red.shared.add.u32 [%0+%2], %1;" ::"r"(address), "r"(term), "n"(kOffset * 4)
               : "memory");
#else
  atomicAdd(Words() + address / 4 + kOffset, term);
#endif
}

template <uint32_t kOffset>
__device__ inline uint32_t LoadShared(uint32_t address) {
#ifdef __CUDA_ARCH__
  uint32_t loaded;
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(loaded) : "r"(address), "n"(kOffset * 4));
  return loaded;
#else
  return Words()[address / 4 + kOffset];
#endif
}

__device__ inline void StoreShared(uint32_t address, uint32_t word) {
#ifdef __CUDA_ARCH__
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
#else
  Words()[address / 4] = word;
#endif
}

// What happens to the words of a value.
enum class Change { kAdd, kRemove };

template <Change kChange>
__device__ inline void ChangeCell(uint32_t address, int32_t distance) {
  const CellWords terms = WordsOf(distance);
  const auto changed = [](uint32_t term) { return kChange == Change::kAdd ? term : 0 - term; };
  AddToShared<0>(address, changed(terms.squares_low));
  AddToShared<WindowLayout::kWord>(address, changed(terms.squares_high));
  AddToShared<2 * WindowLayout::kWord>(address, changed(terms.distances));
}

// What cells are emptied into.
struct WindowTarget {
  uint32_t table = 0;
  Window window;
};

__device__ inline void AddCellSums(const CellSums& sums, uint32_t code, uint32_t sign,
                                   uint32_t binade, const WindowTarget& target) {
  const WindowArguments& arguments = Arguments();
  const uint32_t rank = arguments.edges.plan->ranks_of_codes[code];
  const uint32_t exponent = (target.window.low >> 23) + binade;
  const uint32_t bin = arguments.edges.plan_bins[exponent * WindowPlan::kRanks + rank];
  const SignificandSums terms = AroundCentre(sums, Words()[WindowLayout::kCentres + rank]);
  const uint32_t key = sign * arguments.edges.bin_count + bin;
  AddSums(arguments.tables, uint64_t{target.table} * arguments.tables.keys + key, sums.count,
          terms.significands, terms.squares);
}

// A thread's share of the cells: of each slot, 4 lanes' words of one row; and some shared cells.
class CellShare {
 public:
  // Notes the cells with at least `fewest` values, at most kMostInCell. Returns the number of
  // values that the cells gained since the last Empty; all threads of the block call it.
  __device__ uint32_t Scan(uint32_t fewest) {
    noted_ = 0;
    left_ = 0;
    uint32_t all = 0;
    const uint32_t threshold = fewest << kCellCountShift;
    for (uint32_t slot = 0; slot < WindowPlan::kSlots; ++slot) {
      const uint4 v = Load(RowAt(slot) + WindowLayout::kWord);
      const bool is_noted =
          v.x >= threshold || v.y >= threshold || v.z >= threshold || v.w >= threshold;
      const uint32_t group = 0xFFu << (threadIdx.x % 32 & ~7u);
      const uint32_t count = (v.x >> kCellCountShift) + (v.y >> kCellCountShift) +
                             (v.z >> kCellCountShift) + (v.w >> kCellCountShift);
      Note((__ballot_sync(~0u, is_noted) & group) != 0, slot, count);
      all += count;
    }
    for (uint32_t i = 0; i < kSharedPerThread; ++i) {
      const uint32_t word = Words()[SharedAt(i) + WindowLayout::kWord];
      Note(word >= threshold, WindowPlan::kSlots + i, word >> kCellCountShift);
      all += word >> kCellCountShift;
    }
    return all - before_;
  }

  // Moves the noted cells to the target.
  __device__ void Empty(const WindowTarget& target) {
    for (uint32_t slot = 0; slot < WindowPlan::kSlots; ++slot) {
      const bool is_noted = (noted_ >> slot & 1) != 0;
      if (__any_sync(~0u, is_noted)) EmptyRow(slot, is_noted, target);
    }
    for (uint32_t i = 0; i < kSharedPerThread; ++i) {
      if ((noted_ >> (WindowPlan::kSlots + i) & 1) != 0) EmptyShared(i, target);
    }
    before_ = left_;
  }

 private:
  static constexpr uint32_t kSharedPerThread =
      2 * Window::kBinades * WindowPlan::kShared / kWindowThreads;
  static_assert(2 * Window::kBinades * WindowLayout::kRow == 4 * kWindowThreads);

  __device__ static uint32_t Sign() { return threadIdx.x / (8 * Window::kBinades); }
  __device__ static uint32_t Binade() { return threadIdx.x / 8 % Window::kBinades; }
  __device__ static uint32_t RowAt(uint32_t slot) {
    return Sign() * WindowLayout::kSign + slot * WindowLayout::kSlot +
           Binade() * WindowLayout::kRow + threadIdx.x % 8 * 4;
  }
  __device__ static uint32_t SharedAt(uint32_t i) {
    return WindowLayout::kSharedCells + i * kWindowThreads + threadIdx.x;
  }
  __device__ uint4 Load(uint32_t at) const { return *reinterpret_cast<uint4*>(Words() + at); }
  __device__ void Store(uint32_t at, uint4 v) { *reinterpret_cast<uint4*>(Words() + at) = v; }

  __device__ void Note(bool is_noted, uint32_t bit, uint32_t count) {
    if (is_noted) {
      noted_ |= 1u << bit;
    } else {
      left_ += count;
    }
  }

  __device__ void EmptyRow(uint32_t slot, bool is_noted, const WindowTarget& target) {
    const uint32_t at = RowAt(slot);
    const uint4 low = Load(at), high = Load(at + WindowLayout::kWord),
                distances = Load(at + 2 * WindowLayout::kWord);
    CellSums sums;
    AddCell({low.x, high.x, distances.x}, sums);
    AddCell({low.y, high.y, distances.y}, sums);
    AddCell({low.z, high.z, distances.z}, sums);
    AddCell({low.w, high.w, distances.w}, sums);
    for (int step = 1; step < 8; step *= 2) {
      sums.count += __shfl_xor_sync(~0u, sums.count, step);
      sums.distances += __shfl_xor_sync(~0u, sums.distances, step);
      sums.squares += __shfl_xor_sync(~0u, sums.squares, step);
    }
    if (!is_noted) return;
    for (uint32_t word = 0; word < 3; ++word) Store(at + word * WindowLayout::kWord, {});
    if (threadIdx.x % 8 == 0) {
      AddCellSums(sums, slot, Sign(), Binade(), target);
    }
  }

  __device__ void EmptyShared(uint32_t i, const WindowTarget& target) {
    const uint32_t at = SharedAt(i);
    uint32_t word[3];
    for (uint32_t w = 0; w < 3; ++w) {
      word[w] = Words()[at + w * WindowLayout::kWord];
      Words()[at + w * WindowLayout::kWord] = 0;
    }
    CellSums sums;
    AddCell({word[0], word[1], word[2]}, sums);
    const uint32_t cell = i * kWindowThreads + threadIdx.x;
    const uint32_t row = cell / WindowPlan::kShared;
    AddCellSums(sums, WindowPlan::kFirstShared + cell % WindowPlan::kShared, row % 2, row / 2,
                target);
  }

  uint32_t noted_ = 0;   // a bit for each part of the share
  uint32_t left_ = 0;    // values in cells that are not noted
  uint32_t before_ = 0;  // values in the cells after the last Empty
};

}  // namespace dlsim::gpu
