// SPDX-License-Identifier: Apache-2.0
// What channels lose, added up over the channels of a tensor.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/channels.h"

namespace dlsim {

// The magnitudes of one channel, by halves of binades: how many, their sum, their squares.
class ChannelBins {
 public:
  struct alignas(32) Bin {
    double count = 0, sum = 0, squares = 0;
  };
  struct NamedBin {
    int exponent = 0;         // of the binade
    bool upper_half = false;  // from 1.5 times its power of two on
    Bin bin;
  };

  // Infinities and NaN are not counted. Runs of values add faster.
  void Add(float value) { AddTo(bins_[0], value); }
  void Add(std::span<const float> values) {
    size_t i = 0;
    for (; i + 1 < values.size(); i += 2) {
      AddTo(bins_[0], values[i]);
      AddTo(bins_[1], values[i + 1]);
    }
    if (i < values.size()) Add(values[i]);
  }

  // Returns the bins that hold values, in ascending order, and clears all bins.
  void Take(std::vector<NamedBin>& bins);

 private:
  static constexpr int kShift = 22;  // exponent and the first bit of the significand
  static constexpr size_t kBins = size_t{1} << (31 - kShift);
  static constexpr uint32_t kInfinity = 0x7F800000;
  using Bins = std::array<Bin, kBins>;

  void AddTo(Bins& bins, float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
    if (bits == 0 || bits >= kInfinity) return;
    const size_t place = bits >> kShift;
    used_[place / 64] |= uint64_t{1} << (place % 64);
    const double magnitude = std::bit_cast<float>(bits);
    Bin& bin = bins[place];
    bin.count += 1;
    bin.sum += magnitude;
    bin.squares += magnitude * magnitude;
  }

  // Values alternate between two sets of bins, since additions to one bin wait for each other.
  std::array<Bins, 2> bins_ = {};
  std::array<uint64_t, kBins / 64> used_ = {};
};

// Sums over the channels of a tensor, from which its curves are made. Channels are added in order.
class ChannelSums {
 public:
  // Adds a channel; of `bins` the magnitudes ascend.
  void Add(std::span<const ChannelBins::NamedBin> bins);

  // Adds channels that come after these.
  void Merge(const ChannelSums& later);

  ChannelCurves ToCurves() const;

 private:
  // Exponents of quanta: float32 has nothing that other ones would tell apart.
  static constexpr int kLowest = -164, kHighest = 130;
  static constexpr size_t kQuanta = kHighest - kLowest + 1;
  static size_t PlaceOf(int exponent) { return static_cast<size_t>(exponent - kLowest); }

  void AddHarm(int exponent, double harm);

  uint64_t channels_ = 0;
  std::array<double, kQuanta> sums_ = {}, worst_ = {};
  std::array<uint64_t, kQuanta + 1> lost_ = {};  // channels of which all is lost from here on
};

}  // namespace dlsim
