// SPDX-License-Identifier: Apache-2.0
// Finds the elements of channels in a block of a tensor, and counts them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dlsim/channels.h"
#include "src/measure/channel_table.h"

namespace dlsim {

// The values of a block in each part: fewer in some, or none.
using BlockParts = std::vector<std::span<const float>>;

// The tables of one thread.
inline ColumnTables& ThreadTables() {
  thread_local const std::unique_ptr<ColumnTables> tables = std::make_unique<ColumnTables>();
  return *tables;
}

// Counts rows, of which a block has all elements but of the first and the last. Calls
// done(channel, table, whether it has all of the channel).
template <class Done>
void CountRows(const ChannelLayout& layout, uint64_t begin, const BlockParts& parts,
               const Done& done) {
  size_t longest = 0;
  for (const std::span<const float> part : parts) longest = std::max(longest, part.size());
  ChannelTable& table = ThreadTables().front();
  const uint64_t end = begin + longest;
  for (uint64_t channel = begin / layout.inner; channel * layout.inner < end; ++channel) {
    const uint64_t from = std::max(begin, channel * layout.inner);
    const uint64_t to = std::min(end, (channel + 1) * layout.inner);
    for (const std::span<const float> part : parts) {
      if (!part.empty()) CountRun(part.subspan(from - begin, to - from), table);
    }
    done(channel, table, to - from == layout.inner);
  }
}

// Counts channels whose elements lie in runs.
template <class Done>
void CountRuns(const ChannelLayout& layout, uint64_t begin, const BlockParts& parts,
               const Done& done) {
  ChannelTable& table = ThreadTables().front();
  const uint64_t row = layout.channels * layout.inner;
  for (uint64_t channel = 0; channel < layout.channels; ++channel) {
    for (const std::span<const float> part : parts) {
      const uint64_t end = begin + part.size();
      for (uint64_t at = begin / row * row + channel * layout.inner; at < end; at += row) {
        const uint64_t from = std::max(at, begin), to = std::min(at + layout.inner, end);
        if (from < to) CountRun(part.subspan(from - begin, to - from), table);
      }
    }
    done(channel, table);
  }
}

// Where the rows of features are in a part of a block that starts inside one.
struct FeatureRows {
  size_t head;   // elements before the first whole row
  size_t first;  // the feature of the first of them
  size_t rows, tail;

  FeatureRows(uint64_t channels, uint64_t begin, size_t size)
      : head(static_cast<size_t>(
            std::min<uint64_t>((channels - begin % channels) % channels, size))),
        first(static_cast<size_t>(begin % channels)),
        rows(static_cast<size_t>((size - head) / channels)),
        tail(static_cast<size_t>((size - head) % channels)) {}
};

// Counts one part of a block into the tables of `width` channels from `channel` on.
inline void CountFeaturesOf(uint64_t channels, uint64_t begin, std::span<const float> part,
                            size_t channel, size_t width, ColumnTables& tables) {
  const FeatureRows lie(channels, begin, part.size());
  const float* const rows = part.data() + lie.head;
  if (width == kColumns) CountColumns(rows + channel, lie.rows, channels, tables);
  for (size_t i = 0; i < width; ++i) {
    const size_t feature = channel + i;
    if (width < kColumns) {
      tables[i].Reserve(lie.rows);
      tables[i].AddEach(rows + feature, lie.rows, channels);
    }
    tables[i].Reserve(2);
    if (feature < lie.tail) tables[i].AddEach(rows + lie.rows * channels + feature, 1, 1);
    if (feature >= lie.first && feature - lie.first < lie.head) {
      tables[i].AddEach(part.data() + (feature - lie.first), 1, 1);
    }
  }
}

// Counts channels of one element at a time.
template <class Done>
void CountFeatures(const ChannelLayout& layout, uint64_t begin, const BlockParts& parts,
                   const Done& done) {
  ColumnTables& tables = ThreadTables();
  for (uint64_t channel = 0; channel < layout.channels; channel += kColumns) {
    const auto width = static_cast<size_t>(std::min<uint64_t>(kColumns, layout.channels - channel));
    for (const std::span<const float> part : parts) {
      CountFeaturesOf(layout.channels, begin, part, static_cast<size_t>(channel), width, tables);
    }
    for (size_t i = 0; i < width; ++i) done(channel + i, tables[i]);
  }
}

}  // namespace dlsim
