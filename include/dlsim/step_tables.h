// SPDX-License-Identifier: Apache-2.0
// A recorded step as the tables of its tensors: what a replay asks, and what a profile stores.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "dlsim/table.h"
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

// The default of StepOptions::memory_bytes.
inline constexpr uint64_t kDefaultMemoryBytes = uint64_t{256} << 20;

// How steps are tabulated and measured.
struct StepOptions {
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  uint64_t seed = 0;  // for Rounding::kStochastic; see StreamOf

  // Mantissas, 1 <= m < 2, of loss scales that are no powers of two; see StepTables::by_mantissa.
  std::vector<float> mantissas = {};
  std::span<const NamedScaledFormat> scaled = {};  // see StepTables::scaled

  // About what the steps in flight may take; at least one step is. Digits are the same.
  uint64_t memory_bytes = kDefaultMemoryBytes;

  // What tabulates; null = the CPU. Digits are the same.
  ComputeDevice* device = nullptr;
};

// A file that a step was read from.
struct RecordedFile {
  std::string name;  // without directories
  uint64_t bytes = 0;
  uint64_t content = 0;  // a hash of what it held (docs/profiles.md); 0 = not known

  friend bool operator==(const RecordedFile&, const RecordedFile&) = default;
};

// [part][tensor]
using PartTables = std::vector<std::vector<TensorTable>>;

// A part is a micro-step, or the whole step without any. Where micro-steps are summed first, the
// gradients of the step have one part, and forward tensors those of all micro-steps together.
struct StepTables {
  int64_t step = 0;
  std::vector<int64_t> micro_steps;             // number of each part; -1: the step has none
  std::map<std::string, std::string> metadata;  // of the first recording
  std::vector<RecordedFile> files;              // in the order of the recordings

  // Gradients in the order of the file, then tensors of the forward pass.
  std::vector<TensorRef> tensors;
  size_t gradients = 0;  // how many of them are gradients

  PartTables parts;

  // With several parts: of each gradient's float32 sum over them, as recorded; else empty. Also
  // empty where parts were tabulated one after another, as the recorder does.
  std::vector<TensorTable> sums;

  // By mantissa m: the parts of gradients, each value times m in float32. For scales of m * 2^k.
  std::map<float, PartTables> by_mantissa;

  // [format of StepOptions::scaled][tensor]
  std::vector<std::vector<ScaledLoss>> scaled;

  // The table of a gradient's sum over the parts; where `sums` lacks it, of the parts together.
  TensorTable Sum(size_t gradient) const;
  bool HasSums() const { return parts.size() < 2 || !sums.empty(); }
  double SumOfSquares(size_t gradient) const;  // of that table

  // The same as a norm: infinite or NaN if a value is. Nothing where `sums` lacks it.
  std::optional<double> SquaredNorm(size_t gradient) const;

  friend bool operator==(const StepTables&, const StepTables&) = default;
};

// Tabulates the tensors of a step, on all threads, each of which reads the blocks that it
// tabulates. Throws Error if reading fails.
StepTables TabulateStep(const TraceStep& step, const StepOptions& options);

// Returns one of the PartTables of StepTables::by_mantissa. `parts`: the tables of the step.
PartTables TabulateAt(float mantissa, const PartTables& parts, const TraceStep& step,
                      const StepOptions& options);

// Returns the tensors of a step in the order of StepTables::tensors.
std::vector<TensorRef> DescribeTensors(const TraceStep& step);

}  // namespace dlsim
