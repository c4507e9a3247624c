// SPDX-License-Identifier: Apache-2.0
// What channels lose, added up over the channels of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/channels.h"
#include "src/measure/channel_harm.h"
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
  static size_t PlaceOf(int quantum) { return static_cast<size_t>(quantum - kLowestQuantum); }

  template <class Sums>
  void AddPlaces(std::span<const Sums> sums, size_t first);

  uint64_t channels_ = 0;
  HarmSums harm_;
  std::array<uint64_t, kQuanta + 1> lost_ = {};  // channels of which all is lost from here on
};

}  // namespace dlsim
