// SPDX-License-Identifier: Apache-2.0
// What channels lose, added up over the channels of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/channels.h"
#include "src/measure/channel_table.h"

namespace dlsim {

// Sums over the channels of a tensor, from which its curves are made: all exact, so that channels
// may be added in any order.
class ChannelSums {
 public:
  // Adds a channel, of which nothing is left.
  void Add(ChannelTable& table);

  // Adds a channel by the sums of consecutive places from `first` on; see ChannelTable::Finish.
  void Add(std::span<const WideSums> sums, size_t first);

  void Merge(const ChannelSums& other);

  ChannelCurves ToCurves() const;

 private:
  // Exponents of quanta: float32 has nothing that other ones would tell apart.
  static constexpr int kLowest = -164, kHighest = 130;
  static constexpr size_t kQuanta = kHighest - kLowest + 1;
  static size_t PlaceOf(int exponent) { return static_cast<size_t>(exponent - kLowest); }

  template <class Binades>
  void AddBinades(const Binades& binades, int lowest);
  void AddHarm(int exponent, double harm);

  uint64_t channels_ = 0;
  std::array<uint128_t, kQuanta> sums_ = {};  // in units of 2^-62
  std::array<double, kQuanta> worst_ = {};
  std::array<uint64_t, kQuanta + 1> lost_ = {};  // channels of which all is lost from here on
};

}  // namespace dlsim
