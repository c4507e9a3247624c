// SPDX-License-Identifier: Apache-2.0
// What one thread does with the values that it counts into the cells of a window.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/count/window_cells.cuh"
#include "gpu/count/window_reader.cuh"

namespace dlsim::gpu {

// Elements that a block counts at once.
inline constexpr uint32_t kStride = 4 * kWindowThreads;

// Whether values that have no cells are counted, or were so before.
enum class Others { kCount, kSkip };

// A function of its own, as it is rarely called.
__device__ __attribute__((noinline)) inline void AddAside(uint32_t bits, uint32_t table,
                                                          uint32_t count) {
  AddToTable(bits, Arguments().edges, Arguments().tables, table, count);
}

// Whether a value of the window has a cell, of a slot or a shared one.
__device__ inline bool HasCell(uint32_t bits) {
  const uint32_t rank = RankOf(Words() + WindowLayout::kPhases, bits & codec::kMantissaMask);
  return Words()[WindowLayout::kCodes + rank] < WindowPlan::kNoCell;
}

// What one thread does with its values.
class WindowThread {
 public:
  __device__ WindowThread()
      : lane_base_(SharedBase() + threadIdx.x % 32 * 4),
        queue_(lane_base_ + 4 * WindowLayout::QueueOf(threadIdx.x / 32)),
        queue_end_(queue_) {}

  // All threads of a warp call this with 4 values each, of which those in `valid` count.
  template <Change kChange>
  __device__ void Add(const FourBits& four, uint32_t valid, const WindowTarget& target,
                      Others others) {
    uint32_t parts[4];
    for (uint32_t i = 0; i < 4; ++i) {
      parts[i] = LoadShared<WindowLayout::kParts>(lane_base_ +
                                                  ((four.bits[i] & (0x7F * kRowBytes << 9)) >> 9));
    }
    for (uint32_t i = 0; i < 4; ++i) {
      AddOne<kChange>(four.bits[i], parts[i], (valid >> i & 1) != 0, target.window);
    }
    if (__any_sync(~0u, HasManyQueued())) Drain<kChange>(target, others);
  }

  // Counts all values that wait in the queues of the warp, which calls it as a whole: 32 at once,
  // whichever lanes they are of. Each goes to the cells of its own lane nevertheless, so that these
  // get no more values of a range than the lane has, and the same ones when it is removed.
  template <Change kChange>
  __device__ void Drain(const WindowTarget& target, Others others) {
    __syncwarp();  // other lanes take values than those that stored them
    const uint32_t count = (queue_end_ - queue_) / kRowBytes;
    const uint32_t end = SumUpTo(count);
    const uint32_t all = __shfl_sync(~0u, end, 31);
    for (uint32_t i = threadIdx.x % 32; i - threadIdx.x % 32 < all; i += 32) {
      const uint32_t lane = LaneWith(end, i);
      const uint32_t row = i - __shfl_sync(~0u, end - count, static_cast<int>(lane));
      const uint32_t from_here = (lane - threadIdx.x % 32) * 4;
      if (i < all) {
        const uint32_t bits = LoadShared<0>(queue_ + from_here + row * kRowBytes);
        AddRare<kChange>(bits, lane_base_ + from_here, target, others);
      }
    }
    __syncwarp();
    queue_end_ = queue_;
  }

  __device__ void TrackLargest(const FourBits& four) {
    for (const uint32_t bits : four.bits) {
      const int32_t positive = static_cast<int32_t>(bits);
      positive_ = positive > positive_ ? positive : positive_;
      negative_ = bits > negative_ ? bits : negative_;
    }
  }

  // Ends a piece; `reader` reads it again if there were values that are not finite.
  template <class Reader>
  __device__ void EndPiece(const Reader& reader, uint32_t count) {
    if (positive_ >= static_cast<int32_t>(codec::kInfinityBits) ||
        negative_ >= (codec::kSignBit | codec::kInfinityBits)) {
      for (uint32_t i = threadIdx.x * 4; i < count; i += kStride) {
        for (const uint32_t bits : reader.Read(i).bits) {
          if ((bits & ~codec::kSignBit) < codec::kInfinityBits) UpdateLargest(bits, range_);
        }
      }
    } else {
      UpdateLargest(static_cast<uint32_t>(positive_), range_);
      UpdateLargest(negative_, range_);
    }
    positive_ = 0;
    negative_ = codec::kSignBit;
  }

  __device__ void EndTensor(const WindowTarget& target) {
    AddRange(range_, Arguments().tables.heads[target.table]);
    range_ = {};
  }

  __device__ uint32_t TakeOthers() {
    const uint32_t taken = others_;
    others_ = 0;
    return taken;
  }

 private:
  static constexpr uint32_t kRowBytes = WindowLayout::kRow * 4;

  // Whether there may be no room for 4 more.
  __device__ bool HasManyQueued() const {
    return queue_end_ > queue_ + (WindowLayout::kQueue * 4 - 4 * kRowBytes);
  }

  // Without branches: what has no cell of a slot is added to cells that nobody reads.
  template <Change kChange>
  __device__ void AddOne(uint32_t bits, uint32_t part, bool is_valid, const Window& window) {
    const SlotPlace place = SlotPlace::Of(bits, part);
    const uint32_t relative = bits - window.low;
    const bool has_slot = place.IsIn(relative);
    const uint32_t cell = SlotCell(relative, place.slot(), lane_base_);
    const uint32_t trash = lane_base_ + 4 * WindowLayout::kTrash;
    ChangeCell<kChange>(has_slot && is_valid ? cell : trash, place.distance());
    StoreShared(queue_end_, bits);
    if (!has_slot && is_valid) queue_end_ += kRowBytes;
  }

  __device__ static uint32_t SlotCell(uint32_t bits_less_low, uint32_t slot, uint32_t lane_base) {
    const uint32_t row = ((bits_less_low & 0xFF800000) >> 16) + lane_base;
    constexpr uint32_t kSlotBytes = 4 * WindowLayout::kSlot;
#ifdef __CUDA_ARCH__
    uint32_t cell;  // so that the compiler does not shift and mask `slot` another time
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(cell) : "r"(slot), "n"(kSlotBytes), "r"(row));
    return cell;
#else
    return slot * kSlotBytes + row;
#endif
  }

  // Returns the sum of the counts of the lanes up to this one.
  __device__ static uint32_t SumUpTo(uint32_t count) {
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, count, step);
      if (threadIdx.x % 32 >= step) count += below;
    }
    return count;
  }

  // Returns the first lane whose `end` lies above i, or the last one.
  __device__ static uint32_t LaneWith(uint32_t end, uint32_t i) {
    uint32_t lane = 15;
    for (uint32_t step = 8; step > 0; step /= 2) {
      lane += __shfl_sync(~0u, end, static_cast<int>(lane)) <= i ? step : 0 - step;
    }
    if (__shfl_sync(~0u, end, static_cast<int>(lane)) <= i) ++lane;
    return lane;
  }

  // Returns `address` plus 4 times the rank of a mantissa, as RankOf does; kStep is 2^n for the
  // first 2^(n + 1) ranks.
  template <uint32_t kStep>
  __device__ static uint32_t RankPlace(uint32_t address, uint32_t mantissa) {
    if (LoadShared<WindowLayout::kPhases + kStep - 1>(address) <= mantissa) address += 4 * kStep;
    if constexpr (kStep > 1) {
      return RankPlace<kStep / 2>(address, mantissa);
    } else {
      return address;
    }
  }

  template <Change kChange>
  __device__ void AddRare(uint32_t bits, uint32_t lane_base, const WindowTarget& target,
                          Others others) {
    if (target.window.Has(bits)) {
      const uint32_t mantissa = bits & codec::kMantissaMask;
      const uint32_t base = lane_base & ~(kRowBytes - 1);
      const uint32_t of_rank = RankPlace<WindowPlan::kRanks / 2>(base, mantissa);
      const uint32_t code = LoadShared<WindowLayout::kCodes>(of_rank);
      if (code < WindowPlan::kNoCell) {
        const uint32_t relative = bits - target.window.low;
        const uint32_t shared_cell =
            base + 4 * WindowLayout::SharedCell(relative, code - WindowPlan::kFirstShared);
        const uint32_t center = LoadShared<WindowLayout::kCentres>(of_rank);
        return ChangeCell<kChange>(
            code < WindowPlan::kSlots ? SlotCell(relative, code, lane_base) : shared_cell,
            static_cast<int32_t>(mantissa - center));
      }
    }
    ++others_;
    if (others == Others::kCount && HasBin(bits, range_)) {
      AddAside(bits, target.table, 1);
    }
  }

  uint32_t lane_base_;  // addresses of shared memory, here and below
  uint32_t queue_;      // of this lane; its entries are a row apart
  uint32_t queue_end_;
  uint32_t others_ = 0;  // values without cells
  int32_t positive_ = 0;
  uint32_t negative_ = codec::kSignBit;
  ValueRange range_;
};

}  // namespace dlsim::gpu
