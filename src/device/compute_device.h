// SPDX-License-Identifier: Apache-2.0
// What a replay, a profile or a conversion hands to a device other than the CPU. The results are
// those of the CPU, digit for digit; dlsim/gpu/ has the implementation for CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/histogram.h"
#include "dlsim/measure_step.h"
#include "src/histogram/histogram_sums.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

// What a block contributes to the answers.
struct BlockAnswer {
  std::span<TensorStats> parts;       // [question * part_count + part]
  std::span<double> effective;        // [question]
  std::span<double> scaled;           // [question]: sum of squares of the still scaled sums
  std::span<GradientDetail> details;  // [question]; empty if no question asks for it
};

// All that the blocks of one step have in common. What it refers to lives as long as the work.
struct StepWork {
  const TraceStep* step = nullptr;
  const std::vector<TensorSources>* tensors = nullptr;
  std::span<const int64_t> micro_steps;     // number of each part; see PartNumbers
  std::span<const StepQuestion> questions;  // none for counting
  const StepOptions* options = nullptr;

  // The random stream of a tensor in a part.
  uint32_t StreamOf(size_t tensor, size_t part) const {
    return dlsim::StreamOf((*tensors)[tensor].header.name, step->step, micro_steps[part]);
  }
};

// A step that is being worked on: blocks go in, and results come out later. The destructor waits
// for what still runs, and drops its results.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;

  // Takes the next blocks in order, and reads their bytes before it returns.
  virtual void Add(std::span<const Block> blocks) = 0;

  // Waits for the results of all blocks that were added.
  virtual void Finish() = 0;
};

// Not for several threads at once. Throws Error (exit code 3) that names the call if the device
// fails or has too little memory.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H200)"

  // Begins to measure a step. Calls on_answer(tensor, answer) for the blocks in order, from Add and
  // Finish.
  virtual std::unique_ptr<DeviceWork> Measure(
      const StepWork& work,
      std::function<void(size_t tensor, const BlockAnswer& answer)> on_answer) = 0;

  // Begins to count a step, and adds to `sums`: [tensor * part_count + part].
  virtual std::unique_ptr<DeviceWork> Count(const StepWork& work, const HistogramEdges& edges,
                                            std::span<HistogramSums> sums) = 0;

  // Converts arrays in host memory as EncodeArray and DecodeArray do; copies overlap kernels.
  // `bytes` are elements of `dtype`, at any alignment; values are unscaled by nothing.
  virtual void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                      std::span<uint16_t> codes) = 0;
  virtual void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                      std::span<uint32_t> codes) = 0;
  virtual void Decode(const Format& format, std::span<const uint16_t> codes,
                      std::span<float> values) = 0;
  virtual void Decode(const Format& format, std::span<const uint32_t> codes,
                      std::span<float> values) = 0;
};

// Hands all blocks of the step to a device, while a thread does what RunWithSideTask has it do.
void RunOnDevice(const StepWork& step, DeviceWork& work);

}  // namespace dlsim
