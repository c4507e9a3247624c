// SPDX-License-Identifier: Apache-2.0
// What tensors are counted into on the device: one table per tensor, of exact integer sums per sign
// and bin; and the rows in which those that are not empty leave it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/base/device_buffer.h"

namespace dlsim::gpu {

// A square is kept as two sums, of its lower kSquareShift bits and of the rest: no sum of 2^40
// squares of significands overflows, and no carry passes from one atomic addition to the other.
inline constexpr int kSquareShift = 24;
inline constexpr uint64_t kSquareMask = (uint64_t{1} << kSquareShift) - 1;

struct CountHead {
  uint64_t zeros = 0, nan = 0, inf = 0;
  uint32_t largest[2] = {0, 0};  // by sign
};

// By table * keys + key; a key is sign * bin_count + bin.
struct CountTables {
  uint64_t* counts = nullptr;
  uint64_t* significands = nullptr;
  uint64_t* squares_low = nullptr;
  uint64_t* squares_high = nullptr;
  CountHead* heads = nullptr;  // by table
  uint32_t keys = 0;           // of a table

  static constexpr size_t kBytesPerKey = 4 * sizeof(uint64_t);
};

struct CountRow {
  uint64_t key = 0;
  uint64_t count = 0;
  uint64_t significands = 0;
  uint64_t squares_low = 0;
  uint64_t squares_high = 0;
};

// What a table held; its rows ascend by key.
struct CountAnswer {
  uint64_t first_row = 0;
  uint32_t row_count = 0;
  CountHead head;
};

struct WindowPlan;

struct DeviceEdges {
  const uint32_t* bits = nullptr;  // bin_count + 1
  uint32_t bin_count = 0;
  const WindowPlan* plan = nullptr;  // null if values are counted one by one
  const uint32_t* plan_bins = nullptr;
  uint32_t blocks = 0;  // that run at once, with a plan
};

// Memory of tables, which are empty between a compaction and the next count.
class CountMemory {
 public:
  CountMemory() = default;
  CountMemory(size_t tables, uint32_t keys) : sums_(4 * tables * keys), heads_(tables) {
    view_.counts = sums_.data();
    view_.significands = view_.counts + tables * keys;
    view_.squares_low = view_.significands + tables * keys;
    view_.squares_high = view_.squares_low + tables * keys;
    view_.heads = heads_.data();
    view_.keys = keys;
    if (tables == 0) return;
    CheckCuda(cudaMemset(sums_.data(), 0, sums_.size_bytes()), "cudaMemset");
    CheckCuda(cudaMemset(heads_.data(), 0, heads_.size_bytes()), "cudaMemset");
    // The memsets are in the default stream, for which others do not wait.
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  const CountTables& view() const { return view_; }
  size_t table_count() const { return heads_.size(); }

 private:
  DeviceBuffer<uint64_t> sums_;
  DeviceBuffer<CountHead> heads_;
  CountTables view_;
};

}  // namespace dlsim::gpu
