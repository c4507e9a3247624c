// SPDX-License-Identifier: Apache-2.0
// The tensors of one step over all its recordings, cut into the blocks that threads work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/step_tables.h"
#include "dlsim/trace.h"
#include "src/trace/metadata.h"

namespace dlsim {

// A tensor in one recording; `tensor` is null where the recording lacks it.
struct Source {
  const TraceTensor* tensor = nullptr;
  float grad_scale = 1.0f;
};

// One tensor over all recordings of the step.
struct TensorSources {
  const TraceTensor* first = nullptr;  // of those that are recorded
  uint64_t elements = 0;
  std::vector<Source> recordings;
  std::optional<FeatureAxis> features = {};  // as recorded
};

// A piece of one tensor: the unit of parallel work.
struct Block {
  size_t tensor = 0;
  uint64_t begin = 0;
  size_t count = 0;

  // Per recording, the bytes of a source that is read in order; see ForEachWave. Empty for others.
  std::vector<std::vector<std::byte>> read_before = {};
};

// Returns how many elements of the block the source has.
size_t ElementsOf(const Source& source, const Block& block);

// The pass of training that tensors belong to: nothing mixes them.
enum class Pass : uint8_t { kBackward, kForward };

// Returns the tensors of one pass over all recordings, in the order in which they come first. They
// point into `step`.
std::vector<TensorSources> CollectTensors(const TraceStep& step, Pass pass);

// What bounds the blocks of one group.
struct WaveBounds {
  uint64_t memory_bytes = kDefaultMemoryBytes;  // as StepOptions::memory_bytes
  uint64_t block_bytes = 0;                     // what is found in a block takes; 0 = not known
};

// Calls work(blocks) for consecutive groups of the blocks of all tensors, in order. What is read in
// order, this reads before; the rest is read by whoever works on a block.
void ForEachWave(const std::vector<TensorSources>& tensors,
                 const std::function<void(std::span<const Block> blocks)>& work,
                 const WaveBounds& bounds = {});

// Finds where the bytes of a block are, per recording; null where it lacks what the block is cut
// from. What is not in memory is read into the buffer of the calling thread, where it stays until
// the thread reads another block: it is worked on while the thread's cache holds it.
void ReadBlock(const TensorSources& sources, const Block& block,
               std::vector<const std::byte*>& bytes);

// Writes the bytes of a block in one recording to `out`, which has their size.
void CopyBlock(const TensorSources& sources, const Block& block, size_t recording,
               std::span<std::byte> out);

}  // namespace dlsim
