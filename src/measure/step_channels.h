// SPDX-License-Identifier: Apache-2.0
// What the channels of a step's gradients lose, from blocks in any order on any threads: whoever
// loads a block for something else also hands it to this.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dlsim/channels.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

class TensorChannels;

// Returns how a tensor's channels lie along an axis. Without it, or as a vector, it is one channel.
ChannelLayout LayoutAlong(const std::vector<uint64_t>& shape, size_t axis);

// Whether the channel of a tensor that has but one is counted, too: it is the tensor itself.
enum class OnlyChannels : uint8_t { kCounted, kLeftOut };

class StepChannels {
 public:
  // Of the tensors whose channels are known: alike in all recordings, on the host. `tensors` must
  // live as long as this.
  explicit StepChannels(const std::vector<TensorSources>& tensors,
                        OnlyChannels only = OnlyChannels::kCounted);
  ~StepChannels();

  // True if the channels of a tensor are counted, so that its blocks are to be added.
  bool Counts(size_t tensor) const { return channels_[tensor] != nullptr; }

  // True if a tensor was left out.
  bool LeavesOut(size_t tensor) const { return left_out_[tensor]; }

  // Adds a block of such a tensor; several threads may at once. The loader has loaded all its
  // chunks and keeps them.
  void Add(const Block& block, const ChunkLoader& loader);

  // Returns the curves of all tensors when all blocks were added; unknown of those left out.
  std::vector<ChannelCurves> Take();

 private:
  std::vector<std::unique_ptr<TensorChannels>> channels_;
  std::vector<bool> left_out_;
};

}  // namespace dlsim
