// SPDX-License-Identifier: Apache-2.0
// What kernels count into.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "dlsim/codec.h"

namespace dlsim {

__extension__ using uint128_t = unsigned __int128;

// Sums that a kernel updates with one addition of 128 bits.
struct CountRecord {
  static constexpr int kCountShift = 40;

  uint64_t squares = 0;
  uint64_t packed = 0;  // count << kCountShift | sum of significands

  // Values that fit: their squares have 48 bits.
  static constexpr size_t kMostValues = size_t{1} << 16;
};

// Neighboring values update different records, as a chain of updates of one is slow.
inline constexpr size_t kWays = 2;
using CountRecords = std::array<CountRecord, kWays>;

struct WideSums {
  uint64_t count = 0;
  uint64_t significands = 0;
  uint128_t squares = 0;
};

// An array of zeros, whose pages take no memory until they are written to.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(size_t size)
      : memory_(std::calloc(size + kAlign / sizeof(T) + 1, sizeof(T))) {
    if (!memory_) throw std::bad_alloc();
    size_t space = (size + kAlign / sizeof(T) + 1) * sizeof(T);
    void* begin = memory_.get();
    data_ = static_cast<T*>(std::align(kAlign, size * sizeof(T), begin, space));
  }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  static constexpr size_t kAlign = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  T* data_;
};

struct CountingTables {
  static constexpr size_t kBlock = 256;  // values that a kernel counts at once
  static constexpr size_t kSlack = 16;   // what a kernel may write behind values
  static constexpr size_t kMostAside = 6144;

  CountingTables(size_t record_count, size_t bin_count)
      : records(record_count),
        wide{ZeroedArray<WideSums>(bin_count), ZeroedArray<WideSums>(bin_count)} {}

  uint64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  std::array<uint32_t, 2> largest = {};      // nonzero finite magnitudes per sign
  uint32_t smallest = codec::kInfinityBits;  // of both signs
  size_t in_records = 0;                     // values since they were emptied last
  // Normal numbers that wait until they fill a block, and bits of values that wait for the search
  // of their bins.
  size_t pending_count = 0, aside_count = 0;
  alignas(64) std::array<float, 2 * kBlock + kSlack> pending;
  alignas(64) std::array<uint32_t, kMostAside + kSlack> aside;
  ZeroedArray<CountRecords> records;
  std::array<ZeroedArray<WideSums>, 2> wide;  // per sign and bin
};

inline void AddSignificand(uint64_t significand, WideSums& sums) {
  ++sums.count;
  sums.significands += significand;
  sums.squares += significand * significand;
}

}  // namespace dlsim
