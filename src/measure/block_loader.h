// SPDX-License-Identifier: Apache-2.0
// The float32 values of a block, part by part: reads the recorded elements, and does all that is
// done to them before they are tabulated or measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/step_tables.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// Converts out.size() elements at `from` (any alignment) and divides by the loss scale they still
// carry, as a multiplication with its float32 reciprocal. F64 rounds to nearest even.
void LoadFloats(DType dtype, const std::byte* from, float grad_scale, std::span<float> out);

// Returns the numbers of the parts in which a step is looked at: its micro-steps, or -1 for the
// whole step.
std::vector<int64_t> PartNumbers(const TraceStep& step, Accumulation accumulation);

// Loads blocks on one thread: the bytes of one lie in the thread's buffer until it reads another.
class BlockLoader {
 public:
  explicit BlockLoader(Accumulation accumulation) : accumulation_(accumulation) {}

  // Reads a block in place of that before. Both must live as long as they are asked for.
  void Read(const TensorSources& sources, const Block& block);

  size_t part_count() const { return sums_first_ ? 1 : bytes_.size(); }

  // Returns the values of a part. Activations may be shorter in some micro-steps, and a part may
  // lack the tensor: then there are fewer, down to none.
  std::span<const float> Values(size_t part);

  // Returns the float32 sum of all recordings, in their order.
  std::span<const float> Sum();

 private:
  std::span<const float> Recorded(size_t recording);

  Accumulation accumulation_;
  const TensorSources* sources_ = nullptr;
  const Block* block_ = nullptr;
  bool sums_first_ = false;
  std::vector<const std::byte*> bytes_;        // by recording; null = absent
  std::vector<std::vector<float>> converted_;  // by recording, once it needed conversion
  std::vector<float> sum_;
};

}  // namespace dlsim
