// SPDX-License-Identifier: Apache-2.0
// The tensors of one step over all its recordings, cut into the blocks that threads work on, and
// the float32 values of a block, part by part: what is done to recorded elements before they are
// tabulated or measured.
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
#include "src/trace/tensor_rules.h"

namespace dlsim {

// A tensor in one recording; `tensor` is null where the recording lacks it.
struct Source {
  const TraceTensor* tensor = nullptr;
  float grad_scale = 1.0f;

  // Fills `out`, at most a chunk, with the values from element `begin` on.
  void Load(uint64_t begin, std::span<float> out) const;
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
};

// Returns how many elements of the block the source has.
size_t ElementsOf(const Source& source, const Block& block);

// The pass of training that tensors belong to.
enum class Pass : uint8_t { kBackward, kForward, kAny };
inline bool IsOf(Pass pass, Role role) {
  return pass == Pass::kAny || IsForward(role) == (pass == Pass::kForward);
}

// Returns the tensors of a pass over all recordings, in the order in which they come first. They
// point into `step`.
std::vector<TensorSources> CollectTensors(const TraceStep& step, Pass pass);

// Calls work(blocks) for consecutive groups of the blocks of all tensors, in order.
void ForEachWave(const std::vector<TensorSources>& tensors,
                 const std::function<void(std::span<const Block> blocks)>& work);

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
