// SPDX-License-Identifier: Apache-2.0
// The kernel that tabulates values, and the sums from which it has the columns of a binade.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/measure.h"
#include "dlsim/table.h"

namespace dlsim {

// The exponents of float32 values.
inline constexpr int kLowestExponent = -149, kHighestExponent = 127;
inline constexpr size_t kExponents = kHighestExponent - kLowestExponent + 1;

// A nonzero finite magnitude: its exponent from kLowestExponent on, and its significand.
struct PlacedValue {
  uint32_t place, significand;
};

DLSIM_HOST_DEVICE inline PlacedValue PlaceValue(uint32_t magnitude) {
  constexpr uint32_t kNormal = 23;  // of the smallest normal value
  if (magnitude >= codec::kImplicitBit) {
    return {(magnitude >> 23) + kNormal - 1,
            (magnitude & codec::kMantissaMask) | codec::kImplicitBit};
  }
#ifdef __CUDA_ARCH__
  const uint32_t place = 31u - static_cast<uint32_t>(__clz(static_cast<int>(magnitude)));
#else
  const uint32_t place = 31u - static_cast<uint32_t>(__builtin_clz(magnitude));
#endif
  return {place, magnitude << (kNormal - place)};
}

// Sums over values of one binade, linear in parts of their significands: the kernel multiplies but
// once. For bit n of M, from kFirstBit to 22, `set` counts the values in which it is set, and
// `below` sums M mod 2^n of these. Then, with L(n) the sum of (M mod 2^n)^2,
//   L(n + 1) = L(n) + 2^(n + 1) below(n) + 4^n set(n),
// and the sum of squared distances to the nearest multiple of 2^(n + 1) is
//   L(n) + 4^n set(n) - 2^(n + 1) below(n).
struct BinadeSums {
  static constexpr int kFirstBit = 12, kLastBit = 22;
  static constexpr size_t kBits = kLastBit - kFirstBit + 1;

  uint64_t count = 0, powers = 0, significands = 0;
  uint64_t low_squares = 0;  // L(kFirstBit)
  std::array<uint64_t, kBits> set = {}, below = {};
  std::array<uint64_t, Binade::kMostBits> rounding_up = {};
  std::array<uint64_t, Binade::kTails> tail_sums = {}, tail_squares = {};

  // Adds one value: the definition.
  constexpr void Add(uint32_t significand) {
    ++count;
    powers += significand == 1u << 23 ? 1 : 0;
    significands += significand;
    const uint64_t low = significand & ((1u << kFirstBit) - 1);
    low_squares += low * low;
    for (size_t i = 0; i < kBits; ++i) {
      const uint32_t bit = 1u << (kFirstBit + static_cast<int>(i));
      if ((significand & bit) == 0) continue;
      ++set[i];
      below[i] += significand & (bit - 1);
    }
    AddRoundingUp(1, significand);
  }

  // Adds one value to those that round up, for at least `bits` bits.
  constexpr void AddRoundingUp(int bits, uint32_t significand) {
    const auto least = [](int b) { return (1u << 24) - (1u << (23 - b)); };
    for (int b = bits; b < Binade::kFewestTailBits; ++b) {
      if (significand < least(b)) return;
      ++rounding_up[static_cast<size_t>(b - 1)];
    }
    if (significand < least(Binade::kFewestTailBits)) return;
    // From here on without branches, which nothing predicts.
    for (size_t i = 0; i < Binade::kTails; ++i) {
      const int b = Binade::kFewestTailBits + static_cast<int>(i);
      const uint64_t lacks = significand >= least(b) ? (1u << 24) - significand : 0;
      rounding_up[static_cast<size_t>(b - 1)] += lacks > 0 ? 1 : 0;
      tail_sums[i] += lacks;
      tail_squares[i] += lacks * lacks;
    }
  }

  // Adds these to the columns of the binade, and empties them. To be called before a sum overflows:
  // after 2^30 values at the latest.
  void MoveTo(Binade& binade);
};

static_assert(BinadeSums::kFirstBit + 1 == 23 + Binade::kFirstQuantum);
static_assert(BinadeSums::kBits + 1 == Binade::kQuanta);

// What is counted of an array.
struct TableSums {
  uint64_t zeros = 0, nan = 0, inf = 0;
  uint32_t absmax = 0, largest = 0;            // bits
  std::array<BinadeSums, kExponents> binades;  // by exponent - kLowestExponent

  BinadeSums& Of(int exponent) { return binades[static_cast<size_t>(exponent - kLowestExponent)]; }

  // Adds one value: the definition.
  void Add(float value);

  // Counts a finite magnitude, but not for the largest ones.
  void AddMagnitude(uint32_t bits);
};

// Values of a list that ascends by magnitude, in one binade. Their significands are those of
// float32, shifted and with the leading bit.
struct ValueGroup {
  uint32_t begin, count;
  int exponent;
  int shift;
  uint32_t leading;

  uint32_t SignificandOf(float value) const {
    return (std::bit_cast<uint32_t>(value) & codec::kMantissaMask) << shift | leading;
  }
};

// Writes the groups of nonzero finite values, at most as many as there are values, and returns how
// many.
size_t FindGroups(std::span<const float> values, ValueGroup* groups);

// Sums of the squared distances of the significands of a group to the nearest multiples of a
// spacing, by the spacing's place: at even places, then at odd ones. The first places are those of
// the quanta (Binade::errors); at the spacings of the others all is lost.
inline constexpr size_t kSpacings = 16;
using GroupErrors = std::array<std::array<uint64_t, kSpacings / 2>, 2>;
constexpr uint32_t SpacingAt(size_t place) {
  return place < Binade::kQuanta ? 1u << (place + (23 + Binade::kFirstQuantum)) : 1u << 31;
}

// Finds them for each group.
void SumErrors(const float* values, std::span<const ValueGroup> groups, GroupErrors* errors);

// Sorts keys, of which there are at most TensorTable::kMostValues, in a time that grows with the
// square of their number.
void SortFew(std::span<uint32_t> keys);

// Returns the table of what the sums hold, as binades, and empties them.
TensorTable TableOf(TableSums& sums);

// Adds values to the sums with the instructions of the target in use.
void AddToSums(std::span<const float> values, TableSums& sums);

// Returns the bits of the largest finite magnitude; 0 without one.
uint32_t LargestBits(std::span<const float> values);

// Raises each of `maxima`, the bits of a magnitude, to that of the value at its place, if finite.
void RaiseMagnitudes(std::span<const float> values, uint32_t* maxima);

}  // namespace dlsim
