// SPDX-License-Identifier: Apache-2.0
// Channels of which several blocks have elements, until all blocks came.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "src/measure/channel_sums.h"
#include "src/measure/count_channels.h"

namespace dlsim {

inline void AddWide(WideSums& to, const WideSums& sums) {
  to.count += sums.count;
  to.significands += sums.significands;
  to.squares += sums.squares;
}

// Rows that a block has but a piece of: few.
class OpenRows {
 public:
  void Add(uint64_t channel, std::span<const WideSums> sums, size_t first) {
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].count > 0) AddWide(sums_[{channel, first + i}], sums[i]);
    }
  }

  void MoveTo(ChannelSums& total) {
    std::array<WideSums, kPlaces> row = {};
    for (auto at = sums_.begin(); at != sums_.end();) {
      const uint64_t channel = at->first.first;
      const size_t first = at->first.second & ~size_t{1};
      size_t last = first;
      for (; at != sums_.end() && at->first.first == channel; ++at) {
        last = at->first.second;
        row[last] = at->second;
      }
      const std::span<WideSums> used = std::span(row).subspan(first, (last | 1) + 1 - first);
      total.Add(used, first);
      std::ranges::fill(used, WideSums());
    }
    sums_.clear();
  }

 private:
  std::map<std::pair<uint64_t, size_t>, WideSums> sums_;  // by channel and place
};

// Channels of which each block has but a few elements, by place and channel: places that hold
// nothing take no memory. Threads may add to different channels at once.
class OpenColumns {
 public:
  explicit OpenColumns(uint64_t channels)
      : channels_(static_cast<size_t>(channels)), sums_(kPlaces * channels_) {}

  void Add(uint64_t channel, std::span<const WideSums> sums, size_t first) {
    const std::lock_guard lock(locks_[channel / kColumns % locks_.size()]);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].count > 0) AddWide(At(first + i, channel), sums[i]);
    }
  }

  // Adds to `total` what lies between two places.
  void MoveTo(ChannelSums& total, size_t first, size_t end) {
    std::array<WideSums, kPlaces> sums;
    for (uint64_t channel = 0; channel < channels_; ++channel) {
      for (size_t place = first; place < end; ++place) sums[place] = At(place, channel);
      total.Add(std::span<const WideSums>(sums).subspan(first, end - first), first);
    }
  }

 private:
  WideSums& At(size_t place, uint64_t channel) { return sums_[place * channels_ + channel]; }

  size_t channels_;
  ZeroedArray<WideSums> sums_;
  std::array<std::mutex, 64> locks_;
};

// The values of a tensor whose channels have so few that their sums would take more memory. Threads
// may add different blocks at once.
class OpenValues {
 public:
  OpenValues(uint64_t elements, size_t parts) : sizes_(parts) {
    for (size_t part = 0; part < parts; ++part) {
      values_.push_back(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(elements)));
    }
  }

  void Add(uint64_t begin, const BlockParts& parts) {
    for (size_t part = 0; part < parts.size(); ++part) {
      std::ranges::copy(parts[part], values_[part].get() + begin);
    }
  }

  // Notes that all threads see the values of a block; one at a time.
  void Close(uint64_t begin, const BlockParts& parts) {
    for (size_t part = 0; part < parts.size(); ++part) {
      if (parts[part].empty()) continue;
      sizes_[part] = std::max(sizes_[part], static_cast<size_t>(begin) + parts[part].size());
    }
  }

  BlockParts parts() const {
    BlockParts parts;
    for (size_t part = 0; part < sizes_.size(); ++part) {
      parts.emplace_back(values_[part].get(), sizes_[part]);
    }
    return parts;
  }

 private:
  std::vector<std::unique_ptr<float[]>> values_;
  std::vector<size_t> sizes_;
};

}  // namespace dlsim
