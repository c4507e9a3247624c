// SPDX-License-Identifier: Apache-2.0
// The magnitudes of channels, by halves of binades, in exact integers: a channel's values may come
// in any order and in pieces.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/codec.h"
#include "src/histogram/counting_tables.h"

namespace dlsim {

// A place is what magnitude bits are above the second bit of the significand: the exponent and the
// half of the binade.
inline constexpr int kPlaceShift = 22;
inline constexpr size_t kPlaces = size_t{1} << (31 - kPlaceShift);
inline constexpr size_t kFinitePlaces = codec::kInfinityBits >> kPlaceShift;

// One channel. Kernels add to the records, which hold few values and count as if all values were
// normal; what they hold moves to wide sums in time.
class ChannelTable {
 public:
  // Values that records may hold: all of them may meet in one.
  static constexpr size_t kMostHeld = CountRecord::kMostValues;

  // Makes room for `values` more values.
  void Reserve(size_t values) {
    if (held_ + values > kMostHeld) EmptyRecords();
    held_ += values;
  }

  // Adds values one by one; after Reserve.
  void AddEach(const float* values, size_t count, size_t stride);

  // What kernels add to.
  CountRecords* records() { return records_.data(); }
  void AddRange(uint32_t smallest_less_one, uint32_t largest, size_t zeros) {
    smallest_less_one_ = std::min(smallest_less_one_, smallest_less_one);
    largest_ = std::max(largest_, largest);
    zeros_ += zeros;
  }

  // Where there are values but zeros: from the lower half of a binade to the upper half of another.
  struct Range {
    size_t first = 0, end = 0;
  };

  // True if the records alone tell all, of normal numbers and zeros; their sums have 63 bits.
  // Mostly they do.
  bool IsPlain() const {
    return !spilled_ && held_ < kMostHeld / 2 && smallest_less_one_ >= kLargestSubnormal &&
           largest_ < codec::kInfinityBits;
  }

  // As Finish, of a table that is plain.
  template <class Take>
  void FinishPlain(const Take& take) {
    const Range range = Places();
    const auto records = std::span(records_).subspan(range.first, range.end - range.first);
    if (!records.empty()) take(std::span<const CountRecords>(records), range.first);
    std::ranges::fill(records, CountRecords());
    records_[0] = {};
    Reset();
  }

  // Calls take(sums, first) with the sums of consecutive places from `first` on, which is the lower
  // half of a binade; their number is even. All significands are in units of 2^(e - 23), e being
  // the exponent of their binade, which is -127 below the normal numbers. Then starts again from
  // zero. Infinities and NaN are not counted.
  template <class Take>
  void Finish(const Take& take) {
    EmptyRecords();
    if (smallest_less_one_ < kLargestSubnormal || zeros_ > 0) MendSubnormal();
    const Range range = Places();
    const size_t end = std::min(range.end, kFinitePlaces);
    if (range.first < end) {
      take(std::span<const WideSums>(wide_).subspan(range.first, end - range.first), range.first);
    }
    std::fill(wide_.begin() + static_cast<ptrdiff_t>(range.first),
              wide_.begin() + static_cast<ptrdiff_t>(range.end), WideSums());
    wide_[0] = {};
    Reset();
  }

 private:
  static constexpr uint32_t kLargestSubnormal = (1u << 23) - 1;

  void Reset() {
    smallest_less_one_ = ~0u;
    largest_ = 0;
    zeros_ = held_ = 0;
    spilled_ = false;
  }
  Range Places() const {
    if (largest_ == 0) return {};
    return {(smallest_less_one_ + 1) >> kPlaceShift & ~size_t{1},
            ((largest_ >> kPlaceShift) | 1) + 1};
  }
  void MoveRecord(size_t place);
  void MendSubnormal();
  void EmptyRecords();

  alignas(64) std::array<CountRecords, kPlaces> records_ = {};
  std::array<WideSums, kPlaces> wide_ = {};
  uint32_t smallest_less_one_ = ~0u, largest_ = 0;  // magnitude bits; of zero, less one is the most
  size_t zeros_ = 0, held_ = 0;
  bool spilled_ = false;  // wide sums hold something
  // Tables in a row would be whole pages apart, and share few lines of a cache.
  [[maybe_unused]] std::array<std::byte, 1024> apart_ = {};
};

// Channels whose values lie side by side, which are counted together.
inline constexpr size_t kColumns = 16;
using ColumnTables = std::array<ChannelTable, kColumns>;

// Adds a run of values of one channel.
void CountRun(std::span<const float> values, ChannelTable& table);

// Adds `rows` rows of kColumns values, each of another channel, that begin `stride` values apart.
void CountColumns(const float* values, size_t rows, size_t stride, ColumnTables& tables);

}  // namespace dlsim
