// SPDX-License-Identifier: Apache-2.0
// Launchers of the measurement kernels. All memory is on the device and is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/gpu/stream.h"
#include "dlsim/measure_step.h"
#include "gpu/base/piece.h"

namespace dlsim::gpu {

// A StepQuestion in the form in which kernels take it.
struct DeviceQuestion {
  Conversion conversion;
  float scale = 1.0f;
  const float* tensor_scales = nullptr;  // on the device, by Piece::tensor; null = `scale` for all
  uint64_t seed = 0;                     // for Rounding::kStochastic
  bool has_detail = false;
  DetailQuestion detail = {};
};

// Measures each piece for each question: [question * piece_count + piece].
void LaunchMeasure(const Piece* pieces, uint32_t piece_count,
                   std::span<const DeviceQuestion> questions, TensorStats* results, Stream stream);

// Adds the results of pieces in order: [question * tensor_count + tensor].
void LaunchMerge(const Piece* pieces, uint32_t piece_count, const TensorStats* of_pieces,
                 size_t question_count, uint32_t tensor_count, TensorStats* of_tensors,
                 Stream stream);

// Blocks of a step with several parts: what MeasureStep finds out of each on the CPU.
struct DeviceBlocks {
  const Piece* pieces = nullptr;  // [block * part_count + part]; `values` null = absent
  uint32_t block_count = 0;
  uint32_t part_count = 1;  // recordings; where those are summed first, their sum
};

// Where the answers go, block by block as BlockAnswer has them.
struct DeviceAnswers {
  TensorStats* parts = nullptr;       // [(block * questions + question) * part_count + part]
  double* effective = nullptr;        // [block * questions + question]
  double* scaled = nullptr;           // the same
  GradientDetail* details = nullptr;  // the same; empty without a detail question
};

void LaunchMeasureBlocks(const DeviceBlocks& blocks, std::span<const DeviceQuestion> questions,
                         const DeviceAnswers& answers, Stream stream);

}  // namespace dlsim::gpu
