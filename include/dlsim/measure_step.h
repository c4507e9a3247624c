// SPDX-License-Identifier: Apache-2.0
// Measures one step of a trace for several conversions and scales in one pass over its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim {

// How the micro-steps of a step become its gradient; both sum in float32 in micro-step order.
enum class Accumulation : uint8_t {
  kQuantizeThenSum,  // each micro-step is scaled, quantised and unscaled on its own
  kSumThenQuantize,  // the recorded gradients are summed first and quantised once
};

// One question about a step.
struct StepQuestion {
  Conversion conversion;
  float scale = 1.0f;

  friend bool operator==(const StepQuestion&, const StepQuestion&) = default;
};

struct StepOptions {
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  uint64_t seed = 0;  // for Rounding::kStochastic; see StreamOf

  // Other work, such as opening the next step, that one thread does meanwhile.
  std::function<void()> beside;
};

// One question's answer for one tensor.
struct TensorAnswer {
  std::vector<TensorStats> parts;       // per micro-step, in order; one without micro-steps
  double effective_sum_of_squares = 0;  // of the unscaled gradient of the whole step
  bool scaled_sum_finite = true;        // the float32 sum over parts, still scaled, is finite
};

struct StepTensor {
  std::string name;
  Role role = Role::kGrad;
};

struct StepMeasurement {
  std::vector<int64_t> micro_steps;                // number of each part; -1 = the step has none
  std::vector<StepTensor> tensors;                 // in file order; sums over tensors follow it
  std::vector<std::vector<TensorAnswer>> answers;  // [question][tensor]
};

// Measures a step on all threads. Reads tensors that are not mapped in pieces of bounded size.
// Throws Error if reading fails.
StepMeasurement MeasureStep(const TraceStep& step, std::span<const StepQuestion> questions,
                            const StepOptions& options);

// Returns the random stream of a tensor in a step: FNV-1a (32 bits) over the bytes of the name and
// the little-endian 64-bit step and micro-step (-1 for none).
uint32_t StreamOf(const std::string& tensor, int64_t step, int64_t micro);

}  // namespace dlsim
