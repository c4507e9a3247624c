// SPDX-License-Identifier: Apache-2.0
// The float32 values of a block, part by part: reads the recorded elements, and does all that is
// done to them before they are measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// Returns the numbers of the parts in which a step is measured: its micro-steps, or -1 for the
// whole step.
std::vector<int64_t> PartNumbers(const TraceStep& step, Accumulation accumulation);

// Loads one block in chunks of kChunkElements, on one thread: its bytes lie in the thread's buffer
// until it reads another block.
class ChunkLoader {
 public:
  // What is to be done with chunks once they are used.
  enum class Chunks : uint8_t { kDrop, kKeep };

  // Reads the block. Both must live as long as this.
  ChunkLoader(const TensorSources& sources, const Block& block, Accumulation accumulation,
              Chunks chunks = Chunks::kDrop);

  size_t part_count() const { return sums_first_ ? 1 : bytes_.size(); }

  // False if the part lacks what the block is cut from.
  bool Has(size_t part) const { return sums_first_ || bytes_[part] != nullptr; }

  // Returns the chunk of a part that begins at `begin` in the block, until the next call for that
  // part. Activations may be shorter in some micro-steps: then their chunks are, down to empty.
  std::span<const float> Load(size_t part, size_t begin);

  // The values of a part all of whose chunks were loaded, and kept.
  std::span<const float> Loaded(size_t part) const;

  // Elements of the longest chunk that begins at `begin`.
  size_t ChunkLength(size_t begin) const;

 private:
  // Whether the values of a recording can be used where they are.
  bool IsPlain(size_t recording) const;
  std::span<const float> LoadRecording(size_t recording, size_t begin, size_t part);
  std::span<const float> LoadSum(size_t begin);
  std::span<float> RoomFor(size_t begin, size_t length, std::vector<float>& buffer) const;

  const TensorSources* sources_;
  const Block* block_;
  bool sums_first_;
  Chunks chunks_;
  std::vector<const std::byte*> bytes_;        // by recording; null = absent
  std::vector<std::vector<float>> converted_;  // by part, once one needs conversion
  std::vector<float> sum_;
};

}  // namespace dlsim
