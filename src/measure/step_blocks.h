// SPDX-License-Identifier: Apache-2.0
// The tensors of one step over all its recordings, cut into the blocks that threads work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/trace.h"

namespace dlsim {

// A tensor in one recording; `tensor` is null where the recording lacks it.
struct Source {
  const TraceTensor* tensor = nullptr;
  float grad_scale = 1.0f;
};

// One tensor over all recordings of the step.
struct TensorSources {
  StepTensor header;
  uint64_t elements = 0;
  std::vector<Source> recordings;
};

// A piece of one tensor: the unit of parallel work.
struct Block {
  size_t tensor = 0;
  uint64_t begin = 0;
  size_t count = 0;
  std::vector<const std::byte*> bytes;          // per recording; null = absent there
  std::vector<std::vector<std::byte>> buffers;  // what had to be read
};

// Returns the tensors of all recordings, in the order in which they come first. They point into
// `step`.
std::vector<TensorSources> CollectTensors(const TraceStep& step);

// Calls work(blocks) for consecutive groups of the blocks of all tensors, in order, with their
// bytes: so many at once that what has to be read into memory stays bounded.
void ForEachWave(std::span<const Recording> recordings, const std::vector<TensorSources>& tensors,
                 const std::function<void(std::span<const Block> blocks)>& work);

}  // namespace dlsim
