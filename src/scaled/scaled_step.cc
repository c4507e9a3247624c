// SPDX-License-Identifier: Apache-2.0
// What the tensors of a recorded step lose in formats with scales of their own.
#include <iterator>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/trace.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

bool IsOfParameter(Role role) { return role == Role::kValue || role == Role::kGrad; }

MatrixView AsMatrix(const TraceTensor& tensor, std::span<const float> values) {
  const std::vector<uint64_t>& shape = tensor.info->shape;
  if (values.empty()) return {};
  if (shape.size() < 2) return {values, 1, values.size()};
  const uint64_t columns =
      IsOfParameter(tensor.info->role) ? values.size() / shape.front() : shape.back();
  return {values, values.size() / columns, columns};
}

// The axes along which blocks lie in products of matrices.
std::vector<BlockAxis> AxesOf(Role role, const ScaledFormat& format) {
  if (format.sharing == Sharing::kTensor) return {BlockAxis::kRow};
  if (format.square_parameters && role == Role::kValue) return {BlockAxis::kBoth};
  return {BlockAxis::kRow, BlockAxis::kColumn};
}

ScaledLoss LossOf(const TraceTensor& tensor, const MatrixView& matrix, const ScaledFormat& format,
                  std::optional<float> scale) {
  const MatrixChannels channels =
      IsOfParameter(tensor.info->role) ? MatrixChannels::kRows : MatrixChannels::kColumns;
  ScaledLoss loss;
  const std::vector<BlockAxis> axes = AxesOf(tensor.info->role, format);
  for (size_t i = 0; i < axes.size(); ++i) {
    loss.by_axis[i] = MeasureScaled(format, ElementOf(format, tensor.info->role), matrix, axes[i],
                                    channels, scale);
  }
  return loss;
}

std::vector<float> ValuesOf(const Recording& recording, const TraceTensor& tensor) {
  if (tensor.device >= 0) {
    throw UsageError(Quoted(tensor.info->name), "scaled formats are measured on the host",
                     "a tensor in the host's memory", "cuda:" + std::to_string(tensor.device));
  }
  std::vector<float> values;
  values.reserve(tensor.elements);
  VisitValues(recording, tensor, [&](uint64_t, std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

}  // namespace

std::vector<std::vector<ScaledLoss>> MeasureScaledStep(const TraceStep& step,
                                                       std::span<const NamedScaledFormat> formats,
                                                       const ScaleOfTensor& scale) {
  std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::ranges::move(CollectTensors(step, Pass::kForward), std::back_inserter(tensors));
  std::vector<std::vector<ScaledLoss>> losses(formats.size(),
                                              std::vector<ScaledLoss>(tensors.size()));
  if (formats.empty()) return losses;
  ParallelFor(tensors.size(), [&](size_t t) {
    for (size_t r = 0; r < tensors[t].recordings.size(); ++r) {
      const TraceTensor* const tensor = tensors[t].recordings[r].tensor;
      if (tensor == nullptr) continue;
      const std::vector<float> values = ValuesOf(step.recordings[r], *tensor);
      const MatrixView matrix = AsMatrix(*tensor, values);
      for (size_t f = 0; f < formats.size(); ++f) {
        const std::optional<float> given = scale ? scale(f, tensor->info->name) : std::nullopt;
        losses[f][t].Merge(LossOf(*tensor, matrix, formats[f].format, given));
      }
    }
  });
  return losses;
}

}  // namespace dlsim
