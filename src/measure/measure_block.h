// SPDX-License-Identifier: Apache-2.0
// Measures the blocks of a step on the CPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/device/compute_device.h"
#include "src/measure/chunk_detail.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"
#include "src/measure/step_channels.h"

namespace dlsim {

// The questions about the parts of one tensor. Those that come to the same are one.
class BlockQuestions {
 public:
  // Makes ready what is asked alike of all tensors.
  explicit BlockQuestions(const StepWork& work);

  // True if a question is another one for each tensor, of its own scale or random stream; then
  // these have to be added to a copy before it serves the blocks of a tensor.
  bool by_tensor() const { return by_tensor_; }
  void AddOfTensor(const StepWork& work, size_t tensor);

  std::span<const ChunkQuestion> distinct() const { return distinct_; }

  // Returns the place of a question about a part among the distinct ones.
  size_t PlaceOf(size_t question, size_t part) const { return places_[question * parts_ + part]; }

  // Of the questions that ask for it, where there is one part.
  struct Detail {
    size_t question;
    ChunkDetail of_chunk;
  };
  const std::vector<Detail>& details() const { return details_; }

 private:
  void Add(const StepWork& work, size_t question, size_t tensor);
  size_t AddDistinct(const Measurement& measurement, Asked asked);

  size_t parts_;
  bool by_tensor_ = false;
  std::vector<ChunkQuestion> distinct_;
  std::vector<size_t> places_;  // by question, then by part
  std::vector<Detail> details_;
};

class BlockMeasurer {
 public:
  // Makes ready what the blocks of all tensors have in common. `channels`, if any, is given what it
  // counts. Both must live as long as this.
  explicit BlockMeasurer(const StepWork& work, StepChannels* channels = nullptr);

  // Adds what the block holds to its answer, which begins empty, on the calling thread; several
  // threads may at once.
  void Measure(const Block& block, const BlockAnswer& answer) const;

 private:
  const StepWork& work_;
  BlockQuestions questions_;
  StepChannels* channels_;
};

}  // namespace dlsim
