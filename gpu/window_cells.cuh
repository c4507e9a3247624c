// SPDX-License-Identifier: Apache-2.0
// Cells of a window of binades in shared memory: how values are added to them, and how a block of
// threads takes their sums out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "count_atomics.cuh"
#include "shared_memory.cuh"
#include "window_element.cuh"

namespace dlsim::gpu {

inline constexpr uint32_t kWindowThreads = 1024;

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
  static constexpr uint32_t kEarlyQueues = kSign + kSharedCells;  // and kWord later as many
  static constexpr uint32_t kParts = 2 * kWord + kSign + kSharedCells;
  static constexpr uint32_t kQueue = 10 * kRow;  // of a warp
  static constexpr uint32_t kQueuesInGap = kSlot / kQueue;
  static constexpr uint32_t kLateQueues = kParts + WindowPlan::kCells * kRow;
  static constexpr uint32_t kWarps = kWindowThreads / 32;
  static constexpr uint32_t kPhases = kLateQueues + (kWarps - 2 * kQueuesInGap) * kQueue;
  static constexpr uint32_t kCentres = kPhases + WindowPlan::kRanks;
  static constexpr uint32_t kCodes = kCentres + WindowPlan::kRanks;
  static constexpr uint32_t kSums = kCodes + WindowPlan::kRanks;  // of the block
  static constexpr uint32_t kWords = kSums + 4;
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

// What happens to the words of a value.
enum class Change { kAdd, kRemove };

template <Change kChange>
__device__ inline void ChangeCell(uint32_t* words, uint32_t at, int32_t distance) {
  const CellWords terms = WordsOf(distance);
  const auto change = [&](uint32_t word, uint32_t term) {
    atomicAdd(words + at + word * WindowLayout::kWord, kChange == Change::kAdd ? term : 0 - term);
  };
  change(0, terms.squares_low);
  change(1, terms.squares_high);
  change(2, terms.distances);
}

// What cells are emptied into.
struct WindowTarget {
  const uint32_t* bins = nullptr;  // HostWindowPlan::bins
  CountTables tables;
  uint32_t bin_count = 0;
  uint32_t table = 0;
  Window window;
};

__device__ inline void AddCellSums(const CellSums& sums, const uint32_t* words, uint32_t rank,
                                   uint32_t sign, uint32_t binade, const WindowTarget& target) {
  const uint32_t exponent = (target.window.low >> 23) + binade;
  const uint32_t bin = target.bins[exponent * WindowPlan::kRanks + rank];
  const SignificandSums terms = AroundCentre(sums, words[WindowLayout::kCentres + rank]);
  AddSums(target.tables,
          uint64_t{target.table} * target.tables.keys + sign * target.bin_count + bin, sums.count,
          terms.significands, terms.squares);
}

// A thread's share of the cells: of each slot, 4 lanes' words of one row; and some shared cells.
class CellShare {
 public:
  // `ranks` are WindowPlan::ranks_of_codes.
  __device__ CellShare(uint32_t* words, const uint32_t* ranks) : words_(words), ranks_(ranks) {}

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
      const uint32_t word = words_[SharedAt(i) + WindowLayout::kWord];
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

  __device__ void Clear() {
    for (uint32_t word = 0; word < 3 * WindowLayout::kWord; word += WindowLayout::kWord) {
      for (uint32_t slot = 0; slot < WindowPlan::kSlots; ++slot) Store(RowAt(slot) + word, {});
      for (uint32_t i = 0; i < kSharedPerThread; ++i) words_[SharedAt(i) + word] = 0;
    }
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
  __device__ uint4 Load(uint32_t at) const { return *reinterpret_cast<uint4*>(words_ + at); }
  __device__ void Store(uint32_t at, uint4 v) { *reinterpret_cast<uint4*>(words_ + at) = v; }

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
      AddCellSums(sums, words_, ranks_[slot], Sign(), Binade(), target);
    }
  }

  __device__ void EmptyShared(uint32_t i, const WindowTarget& target) {
    const uint32_t at = SharedAt(i);
    uint32_t word[3];
    for (uint32_t w = 0; w < 3; ++w) {
      word[w] = words_[at + w * WindowLayout::kWord];
      words_[at + w * WindowLayout::kWord] = 0;
    }
    CellSums sums;
    AddCell({word[0], word[1], word[2]}, sums);
    const uint32_t cell = i * kWindowThreads + threadIdx.x;
    const uint32_t row = cell / WindowPlan::kShared;
    const uint32_t rank = ranks_[WindowPlan::kFirstShared + cell % WindowPlan::kShared];
    AddCellSums(sums, words_, rank, row % 2, row / 2, target);
  }

  uint32_t* words_;
  const uint32_t* ranks_;
  uint32_t noted_ = 0;   // a bit for each part of the share
  uint32_t left_ = 0;    // values in cells that are not noted
  uint32_t before_ = 0;  // values in the cells after the last Empty
};

}  // namespace dlsim::gpu
