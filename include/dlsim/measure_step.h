// SPDX-License-Identifier: Apache-2.0
// Measures one step of a trace, its gradients or its forward pass, for several conversions and
// scales in one pass over its tensors.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dlsim/channels.h"
#include "dlsim/codec.h"
#include "dlsim/enum_names.h"
#include "dlsim/gradient_detail.h"
#include "dlsim/histogram.h"
#include "dlsim/scaled_format.h"
#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim {

class ComputeDevice;  // a GPU

// How the micro-steps of a step become its gradient; both sum in float32 in micro-step order.
enum class Accumulation : uint8_t {
  kQuantizeThenSum,  // each micro-step is scaled, quantised and unscaled on its own
  kSumThenQuantize,  // the recorded gradients are summed first and quantised once
};

constexpr auto EnumNames(Accumulation) {
  return std::to_array<EnumName<Accumulation>>({{Accumulation::kQuantizeThenSum, "quantize-first"},
                                                {Accumulation::kSumThenQuantize, "sum-first"}});
}

// What a question is asked for. What is not asked is left at its default by some, answered by
// others.
enum class Asked : uint8_t {
  kAll,
  // What is counted of the inputs, and TensorStats::error_sum_of_squares: faster. Of a step with
  // one part also what overflows, and whether sums of squares are finite as far as elements decide
  // it.
  kErrors,
};

// One question about a step.
struct StepQuestion {
  Conversion conversion;
  float scale = 1.0f;
  std::vector<float> tensor_scales = {};      // instead of `scale`, per tensor; empty = one for all
  std::optional<DetailQuestion> detail = {};  // slower; without it TensorAnswer::detail stays empty
  Asked asked = Asked::kAll;

  float ScaleOf(size_t tensor) const {
    return tensor_scales.empty() ? scale : tensor_scales[tensor];
  }
  bool SameButAsked(const StepQuestion& other) const {
    return conversion == other.conversion && scale == other.scale &&
           tensor_scales == other.tensor_scales && detail == other.detail;
  }
};

// The default of StepOptions::memory_bytes.
inline constexpr uint64_t kDefaultMemoryBytes = uint64_t{256} << 20;

struct StepOptions {
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  uint64_t seed = 0;      // for Rounding::kStochastic; see StreamOf
  bool channels = false;  // fill StepMeasurement::channels

  std::span<const NamedScaledFormat> scaled = {};  // of ProfileOf: what tensors lose in these

  // About what the steps that are measured ahead, and the answers to one step, may take; at least
  // one step is measured. Digits are the same.
  uint64_t memory_bytes = kDefaultMemoryBytes;

  // What measures and counts; null = the CPU. Digits are the same. MeasureSpreads has no options:
  // it stays on the CPU, as few policies ask for it.
  ComputeDevice* device = nullptr;
};

// One end of what a profile knows of a tensor's gradient.
struct GradientBound {
  double effective_sum_of_squares = 0;
  bool scaled_sum_finite = true;
  GradientDetail detail;  // its sum is a magnitude
};

// What a profile leaves open of an answer, which itself is the likeliest.
struct AnswerBounds {
  CounterBrackets counters;  // over the parts
  GradientBound low, high;   // for the smallest and the largest gradient that is possible
};

// One question's answer for one tensor.
struct TensorAnswer {
  std::vector<TensorStats> parts;       // per micro-step, in order; one without micro-steps
  double effective_sum_of_squares = 0;  // of the unscaled gradient of the whole step
  bool scaled_sum_finite = true;        // the float32 sum over parts, still scaled, is finite
  GradientDetail detail;                // if it was asked for
  std::shared_ptr<const AnswerBounds> bounds = nullptr;  // only of a profile
};

struct StepTensor {
  std::string name;
  Role role = Role::kGrad;
};

struct StepMeasurement {
  std::vector<int64_t> micro_steps;                // number of each part; -1 = the step has none
  std::vector<StepTensor> tensors;                 // in file order; sums over tensors follow it
  std::vector<std::vector<TensorAnswer>> answers;  // [question][tensor]
  // By tensor, if asked for; see MeasureChannels. A tensor's only channel is that tensor: where
  // questions tell what it loses, its curve may stay empty. Of a profile empty, too, if it knows of
  // none.
  std::vector<ChannelCurves> channels = {};
};

// Measures the gradients of a step on all threads, each of which reads the blocks that it measures.
// Throws Error if reading fails.
StepMeasurement MeasureStep(const TraceStep& step, std::span<const StepQuestion> questions,
                            const StepOptions& options);

// Returns what the channels of each gradient of a step lose, in the order of TensorsOf, on all
// threads; micro-steps add up as StepOptions::accumulation says. Not known: of a tensor that lies
// on a device, and of one whose micro-steps differ in their channels. Throws Error if reading
// fails. MeasureStep, but for only channels, and ProfileOf find the same while they read the values
// for something else.
std::vector<ChannelCurves> MeasureChannels(const TraceStep& step, Accumulation accumulation);

// Measures the forward tensors of a step: as they are, at scale 1, whatever scale the recording
// carries. A question is a conversion, and a part a micro-step: its values are never summed with
// those of another, so that effective sums of squares mean nothing. Throws as MeasureStep does.
//
// What a verdict on the forward pass needs is in the parts of an answer: `absmax`, the largest
// finite magnitude; `inf` and `nan`, those of the recording, such as masks; `overflow`, finite
// values that the format, rounding included, cannot hold; `underflow` and energy_lost().
StepMeasurement MeasureForward(const TraceStep& step, std::span<const Conversion> conversions,
                               const StepOptions& options);

// Returns the forward tensors whose overflow in fp16 changes nothing: listed by
// kHarmlessOverflowKey in each file in which they overflow, of a micro-step or rank. Throws as
// MeasureStep does.
std::set<std::string> HarmlessOverflows(const TraceStep& step, const StepOptions& options);

// Returns the gradients of a step in the order of StepMeasurement::tensors.
std::vector<StepTensor> TensorsOf(const TraceStep& step);

// Returns the spread of each gradient of a step as recorded; micro-steps count as one population.
std::vector<GradientSpread> MeasureSpreads(const TraceStep& step);

// Returns the random stream of a tensor in a step: FNV-1a (32 bits) over the bytes of the name and
// the little-endian 64-bit step and micro-step (-1 for none).
uint32_t StreamOf(const std::string& tensor, int64_t step, int64_t micro);

}  // namespace dlsim
