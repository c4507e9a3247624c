// SPDX-License-Identifier: Apache-2.0
#include "src/measure/step_channels.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "dlsim/measure.h"
#include "src/measure/channel_sums.h"
#include "src/measure/count_channels.h"
#include "src/measure/open_channels.h"

namespace dlsim {
namespace {

// Returns how a tensor's channels lie, if that is known; of recordings of other lengths, in the
// longest.
std::optional<ChannelLayout> KnownLayout(const TensorSources& sources) {
  if (sources.features && !*sources.features) return std::nullopt;
  std::optional<ChannelLayout> layout;
  for (const Source& source : sources.recordings) {
    if (source.tensor == nullptr) continue;
    if (source.tensor->device >= 0) return std::nullopt;
    const std::vector<uint64_t>& shape = source.tensor->shape;
    ChannelLayout own = sources.features ? LayoutAlong(shape, **sources.features)
                                         : LayoutOf(sources.header.role, shape);
    if (layout && (layout->channels != own.channels || layout->inner != own.inner)) {
      return std::nullopt;
    }
    if (layout) own.outer = std::max(own.outer, layout->outer);
    layout = own;
  }
  return layout;
}

}  // namespace

class TensorChannels {
 public:
  TensorChannels(const ChannelLayout& layout, uint64_t elements, size_t parts) : layout_(layout) {
    if (elements <= kBlockElements) return;
    shared_ = std::make_unique<Shared>(elements, parts);
  }

  void Add(const Block& block, const BlockParts& parts) {
    if (!shared_) {
      curves_ = SumsOf(parts).ToCurves();
    } else if (layout_.outer == 1) {
      AddRows(block, parts);
    } else if (layout_.outer * layout_.inner > kFewValues) {
      AddColumns(block, parts);
    } else {
      AddValues(block, parts);
    }
  }

  ChannelCurves Take() { return std::move(curves_); }

 private:
  // Sums of a channel take one or two KiB.
  static constexpr uint64_t kFewValues = 512;

  // Of a tensor that has several blocks, until all of them came.
  struct Shared {
    Shared(uint64_t all, size_t part_count) : elements(all), left(all), parts(part_count) {}

    std::mutex mutex;  // of all but what takes care of itself
    uint64_t elements, left;
    size_t parts;
    ChannelSums sums;
    OpenRows rows;
    std::optional<OpenColumns> columns;
    size_t first = kPlaces, end = 0;  // where columns hold values
    std::optional<OpenValues> values;
  };

  template <class Done>
  void CountColumnsOf(uint64_t begin, const BlockParts& parts, const Done& done) const {
    layout_.inner == 1 ? CountFeatures(layout_, begin, parts, done)
                       : CountRuns(layout_, begin, parts, done);
  }

  // Sums up all of a tensor.
  ChannelSums SumsOf(const BlockParts& parts) const {
    ChannelSums sums;
    if (layout_.outer == 1) {
      CountRows(layout_, 0, parts, [&](uint64_t, ChannelTable& table, bool) { sums.Add(table); });
    } else {
      CountColumnsOf(0, parts, [&](uint64_t, ChannelTable& table) { sums.Add(table); });
    }
    return sums;
  }

  void AddRows(const Block& block, const BlockParts& parts) {
    ChannelSums sums;
    CountRows(layout_, block.begin, parts, [&](uint64_t channel, ChannelTable& table, bool all) {
      if (all) return sums.Add(table);
      const std::lock_guard lock(shared_->mutex);
      table.Finish([&](std::span<const WideSums> of_row, size_t first) {
        shared_->rows.Add(channel, of_row, first);
      });
    });
    const std::lock_guard lock(shared_->mutex);
    shared_->sums.Merge(sums);
    if (!IsLast(block)) return;
    shared_->rows.MoveTo(shared_->sums);
    Close();
  }

  void AddColumns(const Block& block, const BlockParts& parts) {
    {
      const std::lock_guard lock(shared_->mutex);
      if (!shared_->columns) shared_->columns.emplace(layout_.channels);
    }
    size_t lowest = kPlaces, highest = 0;
    CountColumnsOf(block.begin, parts, [&](uint64_t channel, ChannelTable& table) {
      table.Finish([&](std::span<const WideSums> sums, size_t first) {
        shared_->columns->Add(channel, sums, first);
        lowest = std::min(lowest, first);
        highest = std::max(highest, first + sums.size());
      });
    });
    const std::lock_guard lock(shared_->mutex);
    shared_->first = std::min(shared_->first, lowest);
    shared_->end = std::max(shared_->end, highest);
    if (!IsLast(block)) return;
    if (shared_->first < shared_->end) {
      shared_->columns->MoveTo(shared_->sums, shared_->first, shared_->end);
    }
    Close();
  }

  void AddValues(const Block& block, const BlockParts& parts) {
    {
      const std::lock_guard lock(shared_->mutex);
      if (!shared_->values) shared_->values.emplace(shared_->elements, shared_->parts);
    }
    shared_->values->Add(block.begin, parts);
    const std::lock_guard lock(shared_->mutex);
    shared_->values->Close(block.begin, parts);
    if (!IsLast(block)) return;
    shared_->sums = SumsOf(shared_->values->parts());
    Close();
  }

  bool IsLast(const Block& block) {
    shared_->left -= block.count;
    return shared_->left == 0;
  }

  // Makes the curves, and frees the rest but the lock, which is held.
  void Close() {
    curves_ = shared_->sums.ToCurves();
    shared_->columns.reset();
    shared_->values.reset();
  }

  ChannelLayout layout_;
  std::unique_ptr<Shared> shared_;
  ChannelCurves curves_;
};

StepChannels::StepChannels(const std::vector<TensorSources>& tensors, OnlyChannels only) {
  for (const TensorSources& sources : tensors) {
    channels_.emplace_back();
    const std::optional<ChannelLayout> layout = KnownLayout(sources);
    left_out_.push_back(layout && layout->channels == 1 && only == OnlyChannels::kLeftOut);
    if (!layout || left_out_.back()) continue;
    channels_.back() =
        std::make_unique<TensorChannels>(*layout, sources.elements, sources.recordings.size());
  }
}

StepChannels::~StepChannels() = default;

void StepChannels::Add(const Block& block, const ChunkLoader& loader) {
  BlockParts parts;
  for (size_t part = 0; part < loader.part_count(); ++part) parts.push_back(loader.Loaded(part));
  channels_[block.tensor]->Add(block, parts);
}

std::vector<ChannelCurves> StepChannels::Take() {
  std::vector<ChannelCurves> curves;
  for (const std::unique_ptr<TensorChannels>& channels : channels_) {
    curves.push_back(channels ? channels->Take() : ChannelCurves());
  }
  return curves;
}

}  // namespace dlsim
