// SPDX-License-Identifier: Apache-2.0
// How a block counts pieces, range of values by range. Its cells are so small that values which are
// too much alike overflow them. Then the counts add up to less than the number of values, for every
// overflow loses 128 of a count and carries less into it; the range is removed from the cells,
// modulo 2^32 as it was added, and counted again in smaller ranges.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/count/window_thread.cuh"

namespace dlsim::gpu {

// Values that are counted before cells are looked at, by level. The last is safe for the cells of
// slots: each lane's number of cells gets at most 96 of 3072 values.
__device__ inline uint32_t RangeSize(uint32_t level) {
  return level == 0 ? 32768 : level == 1 ? 8192 : 3072;
}
inline constexpr uint32_t kLastLevel = 2;
// Cells with fewer values than this wait, in the first level.
inline constexpr uint32_t kWaiting = 40;

__device__ inline uint32_t WarpSum(uint32_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// What a block does with the pieces of one tensor after the other.
class WindowBlock {
 public:
  __device__ void BeginTensor(uint32_t table) {
    target_.table = table;
    target_.window = {};
    level_ = 0;
  }

  __device__ void EndTensor() {
    EmptyAll();
    thread_.EndTensor(target_);
  }

  __device__ void CountPiece(const Piece& piece) {
    const AnyReader reader(piece);
    PlaceWindow(reader);
    uint32_t tried = 0;  // values up to here were counted if they have no cells
    for (uint32_t first = 0; first < piece.count;) {
      const uint32_t most = first < tried ? tried : piece.count;
      const uint32_t size = RangeSize(level_);
      const uint32_t end = most - first < size ? most : first + size;
      const Others others = first < tried ? Others::kSkip : Others::kCount;
      const bool is_counted = CountRange(piece, first, end, others);
      tried = end > tried ? end : tried;
      if (!is_counted && level_ < kLastLevel) {
        EmptyAll();
        ++level_;
        continue;
      }
      if (!is_counted) CountInTable(reader, first, end);
      first = end;
    }
    thread_.EndPiece(reader, piece.count);
  }

 private:
  // Chooses the window by the first values.
  template <class Reader>
  __device__ void PlaceWindow(const Reader& reader) {
    uint32_t* largest = Words() + WindowLayout::kSums + 2;
    if (threadIdx.x == 0) *largest = 0;
    __syncthreads();
    uint32_t exponent = 0;
    for (const uint32_t bits : reader.Read(threadIdx.x * 4).bits) {
      const uint32_t of_bits = bits >> 23 & 0xFF;
      if (of_bits < 255 && of_bits > exponent) exponent = of_bits;
    }
    for (int step = 16; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, exponent, step);
      exponent = other > exponent ? other : exponent;
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest, exponent);
    __syncthreads();
    const Window window = Window::Below(*largest);
    constexpr uint32_t kMostAbove = 16u << 23;
    if (window.low > target_.window.low || window.low + kMostAbove < target_.window.low) {
      EmptyAll();
      target_.window = window;
    }
  }

  __device__ void EmptyAll() {
    share_.Scan(1);
    share_.Empty(target_);
    __syncthreads();
  }

  // Counts the values from `first` to `end`, but for those without cells if they are to be skipped.
  // Returns whether no cell overflowed; otherwise the cells are as they were.
  __device__ bool CountRange(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    AddRange(piece, first, end, others);
    __syncthreads();
    const uint32_t gained = share_.Scan(level_ == 0 ? kWaiting : 1) + thread_.TakeOthers();
    const uint32_t of_warp = WarpSum(gained);
    uint32_t* sum = Words() + WindowLayout::kSums + turn_;
    if (threadIdx.x % 32 == 0) atomicAdd(sum, of_warp);
    __syncthreads();
    const bool is_counted = *sum == end - first;
    if (is_counted) {
      share_.Empty(target_);
    } else {
      PassParts<Change::kRemove>(piece, first, end, Others::kSkip);
      thread_.Drain<Change::kRemove>(target_, Others::kSkip);
      thread_.TakeOthers();
    }
    __syncthreads();
    if (threadIdx.x == 0) *sum = 0;  // the next range has another one
    turn_ ^= 1;
    return is_counted;
  }

  __device__ void AddRange(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    const uint32_t whole_first = (first + kStride - 1) / kStride * kStride;
    const uint32_t whole_end = end / kStride * kStride;
    if (whole_first < whole_end) {
      PassParts<Change::kAdd>(piece, first, whole_first, others);
      DispatchDType(piece.dtype, [&](auto dtype) {
        const FourReader<decltype(dtype)::value> reader(piece);
        if (reader.is_aligned()) {
          PassWhole(reader, whole_first, whole_end, others);
        } else {
          PassParts<Change::kAdd>(piece, whole_first, whole_end, others);
        }
      });
      PassParts<Change::kAdd>(piece, whole_end, end, others);
    } else {
      PassParts<Change::kAdd>(piece, first, end, others);
    }
    thread_.Drain<Change::kAdd>(target_, others);
  }

  // Elements i of one thread have i / 4 modulo kWindowThreads in common, here and below.
  template <class Reader>
  __device__ void PassWhole(const Reader& reader, uint32_t first, uint32_t end, Others others) {
    uint32_t at = first + threadIdx.x * 4;
    auto elements = reader.Fetch(at);
#ifdef __CUDACC__
#pragma unroll 2  // copies no registers
#endif
    for (; at < end; at += kStride) {
      const auto current = elements;
      if (at + kStride < end) elements = reader.Fetch(at + kStride);
      const FourBits four = reader.Convert(current);
      thread_.TrackLargest(four);
      thread_.Add<Change::kAdd>(four, 0xF, target_, others);
    }
  }

  template <Change kChange>
  __device__ void PassParts(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    const AnyReader reader(piece);
    for (uint32_t base = first / kStride * kStride; base < end; base += kStride) {
      const uint32_t at = base + threadIdx.x * 4;
      const FourBits four = reader.Read(at);
      if (kChange == Change::kAdd) thread_.TrackLargest(four);
      uint32_t valid = 0;
      for (uint32_t i = 0; i < 4; ++i) {
        valid |= (at + i >= first && at + i < end ? 1u : 0u) << i;
      }
      thread_.Add<kChange>(four, valid, target_, others);
    }
  }

  // Adds the values that have cells to the table; the others were counted before.
  template <class Reader>
  __device__ void CountInTable(const Reader& reader, uint32_t first, uint32_t end) {
    for (uint32_t base = first / 4 * 4; base < end; base += kStride) {
      const uint32_t at = base + threadIdx.x * 4;
      const FourBits four = reader.Read(at);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t bits = four.bits[i];
        const bool is_valid = at + i >= first && at + i < end;
        AddAlike(bits, is_valid && target_.window.Has(bits) && HasCell(bits));
      }
    }
  }

  // Mostly, the values of a warp are all the same when this is called.
  __device__ void AddAlike(uint32_t bits, bool has) {
    const uint32_t mask = __ballot_sync(~0u, has);
    if (mask == 0) return;
    const int leader = __ffs(static_cast<int>(mask)) - 1;
    const uint32_t of_leader = __shfl_sync(~0u, bits, leader);
    if (!__any_sync(~0u, has && bits != of_leader)) {
      const uint32_t count = static_cast<uint32_t>(__popc(mask));
      if (threadIdx.x % 32 == 0) {
        AddAside(of_leader, target_.table, count);
      }
    } else if (has) {
      AddAside(bits, target_.table, 1);
    }
  }

  WindowThread thread_;
  CellShare share_;
  WindowTarget target_;
  uint32_t level_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace dlsim::gpu
