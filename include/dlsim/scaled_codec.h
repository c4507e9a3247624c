// SPDX-License-Identifier: Apache-2.0
// Conversions of matrices to scaled formats and back, and what they lose. Elements round to nearest
// even and saturate, infinities too; NaN stays NaN where the element format has it. Rules and
// sources: docs/scaled-formats.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/scaled_format.h"
#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim {

// Along which axis of a matrix the elements of a block lie, and of a row that shares a scale. A
// matrix product needs both of a gradient: the axis over which it sums.
enum class BlockAxis : uint8_t {
  kRow,     // consecutive in memory
  kColumn,  // one below the other
  kBoth,    // a square of as many rows as columns; of Sharing::kBlock only
};

// rows x columns float32 values, row by row.
struct MatrixView {
  std::span<const float> values;
  uint64_t rows = 0, columns = 0;
};

// What a matrix becomes.
struct ScaledCodes {
  std::vector<uint8_t> codes;  // one for each element, in memory order
  // One for each group of elements: E8M0 or E4M3 codes, or the bits of the float32 scale by which
  // values are multiplied. In the order of a matrix of groups: rows x blocks for BlockAxis::kRow,
  // blocks x columns for kColumn, blocks x blocks for kBoth; the last of a line may be short.
  std::vector<uint32_t> scales;
  float tensor_scale = 1;  // of ScaleType::kFp8: multiplies each E4M3 scale when decoding
};

// Encodes a matrix to elements of a format: that of `forward` or `backward`. `scale`: the scale of
// the tensor instead of the one that follows from its values; of Sharing::kTensor only.
ScaledCodes EncodeScaled(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, BlockAxis axis,
                         std::optional<float> scale = std::nullopt);

// Decodes what EncodeScaled returned for a matrix of this shape; `values` has its size.
void DecodeScaled(const ScaledFormat& format, const Format& element, const ScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, std::span<float> values);

// What a conversion did to a matrix.
struct ScaledStats {
  // `overflow` counts the elements that are clipped: larger, scaled, than the largest of the
  // format. Sums are in memory order.
  TensorStats stats;
  // sum (q(x) - x)^2 / sum x^2 over the elements of a channel that is not zero; 0 without any.
  double mean_channel_harm = 0, worst_channel_harm = 0;
  uint64_t channels = 0;               // that are not zero
  float min_scale = 0, max_scale = 0;  // by which values were multiplied

  // Adds another matrix; harms of channels become the larger of both.
  void Merge(const ScaledStats& other);

  friend bool operator==(const ScaledStats&, const ScaledStats&) = default;
};

// What the channels of a matrix are.
enum class MatrixChannels : uint8_t { kRows, kColumns };

ScaledStats MeasureScaled(const ScaledFormat& format, const Format& element,
                          const MatrixView& matrix, BlockAxis axis, MatrixChannels channels,
                          std::optional<float> scale = std::nullopt);

// What a tensor loses in products of matrices, which need it with blocks along rows and along
// columns: the second is empty if the tensor has one scale or its blocks are squares.
struct ScaledLoss {
  std::array<ScaledStats, 2> by_axis = {};

  // Adds another micro-step.
  void Merge(const ScaledLoss& other);

  friend bool operator==(const ScaledLoss&, const ScaledLoss&) = default;
};

// Returns the float32 scale that a largest magnitude gives: max / largest with the margin, at most
// the largest float32, then rounded down to a power of two if the format says so; 1 for zero and
// for infinity.
float ScaleFor(const ScaledFormat& format, const Format& element, float largest);

// Returns the elements of a tensor.
inline const Format& ElementOf(const ScaledFormat& format, Role role) {
  return IsForward(role) ? format.forward : format.backward;
}

// The scale of a tensor in the i-th format; nothing where it follows from the values.
using ScaleOfTensor = std::function<std::optional<float>(size_t format, const std::string& tensor)>;

// Returns [format][tensor], in the order of ProfileStep::tensors, measured on all threads. Tensors
// are matrices: activations of their last axis, parameters of their first. Micro-steps are
// converted one by one. Throws Error if reading fails, or if a tensor lies on a device.
std::vector<std::vector<ScaledLoss>> MeasureScaledStep(const TraceStep& step,
                                                       std::span<const NamedScaledFormat> formats,
                                                       const ScaleOfTensor& scale = {});

}  // namespace dlsim
