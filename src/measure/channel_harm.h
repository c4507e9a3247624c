// SPDX-License-Identifier: Apache-2.0
// What one channel loses to quanta, binade by binade, and sums of that over channels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/measure/channel_table.h"

namespace dlsim {

inline constexpr size_t kBinades = kPlaces / 2;

// A channel's magnitudes by binade, from the lowest that holds some.
struct Binades {
  // The rows hold kBelow zeros before the lowest binade, since a quantum may lie below it: by at
  // most 37 binades if that one is subnormal, else by 8. They have room for kBehind values after
  // the last binade, which vectors read and write.
  static constexpr ptrdiff_t kBelow = 40, kBehind = 24;

  class Row {
   public:
    double* At(ptrdiff_t binade) { return values_.data() + kBelow + binade; }
    const double* At(ptrdiff_t binade) const { return values_.data() + kBelow + binade; }

   private:
    alignas(64) std::array<double, kBelow + kBinades + kBehind> values_ = {};
  };

  ptrdiff_t size = 0;
  Row counts, squares;
  // The squared errors where magnitudes become the nearer end of their binade, and where all become
  // the upper one.
  Row to_nearest, to_upper;
  // Sums over all lower binades, also up to that behind the last.
  Row counts_below, squares_below;

  double count() const { return *counts_below.At(size); }
  double sum_of_squares() const { return *squares_below.At(size); }
};

// Sets the binades from the sums of consecutive places, `first` being the lower half of the lowest
// binade; see ChannelTable.
void FillBinades(std::span<const CountRecords> records, size_t first, Binades& binades);
void FillBinades(std::span<const WideSums> sums, size_t first, Binades& binades);

// Exponents of quanta: float32 has nothing that other ones would tell apart.
inline constexpr int kLowestQuantum = -164, kHighestQuantum = 130;
inline constexpr size_t kQuanta = kHighestQuantum - kLowestQuantum + 1;

// By quantum: the sum of harm in units of 2^-62, and the largest harm. The lower and the upper 32
// bits of the terms are summed separately.
struct HarmSums {
  static constexpr double kUnits = 0x1p62;
  static constexpr size_t kBehind = 8;  // vectors write this far behind the last
  template <class T>
  using Row = std::array<T, kQuanta + kBehind>;

  Row<uint64_t> low = {}, high = {};
  Row<double> worst = {};

  double SumAt(size_t quantum) const {
    return static_cast<double>((uint128_t{high[quantum]} << 32) + low[quantum]) / kUnits;
  }
};

// Adds a channel's harm at `count` quanta, from 2^quantum on, which is in the binade `binade` of
// the channel: down to kBelow - 1 below its lowest one, up to the one behind its last.
void AddHarm(const Binades& binades, ptrdiff_t binade, int quantum, size_t count, HarmSums& sums);

}  // namespace dlsim
