// SPDX-License-Identifier: Apache-2.0
// Counts the values of arrays between fixed magnitudes, with the exact sums of their squares: what
// a profile keeps of a tensor. All is integer arithmetic, so that any order, number of threads,
// vector width and device gives the same result, and histograms of parts add up to that of the
// whole.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dlsim/codec.h"

namespace dlsim {

class CountingPlan;
struct CountingTables;

__extension__ using uint128_t = unsigned __int128;

enum class Sign : uint8_t { kPositive, kNegative };

inline constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// The value of float32 magnitude bits.
inline float ValueOf(uint32_t magnitude, Sign sign) {
  return std::bit_cast<float>(magnitude | (sign == Sign::kNegative ? codec::kSignBit : 0));
}

// A sorted set of magnitudes at which values are told apart. Bin b holds the magnitudes from
// bits()[b] up to but without bits()[b + 1].
class HistogramEdges {
 public:
  // `edges` are float32 magnitude bits in any order. The smallest nonzero magnitude, every power
  // of two that float32 has as a normal number, and infinity are edges in any case; zero is not.
  explicit HistogramEdges(std::vector<uint32_t> edges);

  std::span<const uint32_t> bits() const { return bits_; }
  size_t bin_count() const { return bits_.size() - 1; }

  // The bin of a nonzero finite magnitude.
  size_t BinOf(uint32_t magnitude) const;

  // What one square of a significand of a bin stands for.
  double square_unit(size_t bin) const { return square_units_[bin]; }

  friend bool operator==(const HistogramEdges& a, const HistogramEdges& b) {
    return a.bits_ == b.bits_;
  }

 private:
  friend struct HistogramInternals;
  std::vector<uint32_t> bits_;
  std::vector<double> square_units_;
  std::shared_ptr<const CountingPlan> plan_;  // what counters of these edges share
};

// The significand of a magnitude as an integer: its value is significand * 2^QuantumExponent.
constexpr uint32_t Significand(uint32_t magnitude) {
  const uint32_t implicit = magnitude >> 23 == 0 ? 0 : 1u << 23;
  return (magnitude & codec::kMantissaMask) | implicit;
}

// The exponent of the unit in which significands of a binade are counted; magnitudes of a bin
// share it.
constexpr int QuantumExponent(uint32_t magnitude) {
  const int biased = static_cast<int>(magnitude >> 23);
  return (biased == 0 ? 1 : biased) - 150;
}

struct HistogramBin {
  uint32_t bin = 0;  // index among the bins of the edges
  uint64_t count = 0;
  uint128_t squares = 0;  // sum of the squares of significands

  friend bool operator==(const HistogramBin&, const HistogramBin&) = default;
};

// The nonzero finite values of one sign.
struct SignHistogram {
  uint32_t largest = 0;            // magnitude bits of the largest; 0 if there is none
  std::vector<HistogramBin> bins;  // those that are not empty, ascending

  friend bool operator==(const SignHistogram&, const SignHistogram&) = default;
};

// What is known of an array: exact counters, and histograms of its values.
struct Histogram {
  uint64_t elements = 0;
  uint64_t zeros = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  // Sum of the finite values. The one number here that is rounded, from exact sums per bin.
  double sum = 0;
  std::array<SignHistogram, 2> signs;  // indexed by Sign

  const SignHistogram& Of(Sign sign) const { return signs[static_cast<size_t>(sign)]; }
  SignHistogram& Of(Sign sign) { return signs[static_cast<size_t>(sign)]; }

  friend bool operator==(const Histogram&, const Histogram&) = default;
};

// Counts arrays on the calling thread, any number of them in any order; their histograms add up.
// What this costs besides reading the values grows with the binades that they lie in.
class HistogramCounter {
 public:
  explicit HistogramCounter(const HistogramEdges& edges);  // must live as long as this
  HistogramCounter(const HistogramCounter&) = delete;
  HistogramCounter& operator=(const HistogramCounter&) = delete;
  ~HistogramCounter();

  void Add(std::span<const float> values);

  // Returns what was counted and starts again from zero.
  Histogram Take();

 private:
  friend struct HistogramInternals;
  const HistogramEdges* edges_;
  std::unique_ptr<CountingTables> tables_;
};

// Returns the histogram of what two arrays hold together. `sum` is added as it is.
Histogram MergeHistograms(const Histogram& a, const Histogram& b);

}  // namespace dlsim
