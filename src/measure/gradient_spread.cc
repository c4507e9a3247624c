// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "src/base/parallel.h"
#include "src/measure/load_floats.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/measure_element.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// Sums over the finite elements of one block or tensor.
struct Moments {
  double count = 0, sum = 0, sum_of_squares = 0;
  float absmax = 0;

  // Adds a chunk. Nearly all are finite, and all but their sum is known then.
  void Add(std::span<const float> values) {
    const ChunkInputs inputs = MeasureInputs(values);
    if (!inputs.finite) return AddFinite(values);
    SumLanes sums{};
    ForEachLane(values.size(), [&](size_t i, size_t lane) { sums[lane] += double{values[i]}; });
    count += static_cast<double>(values.size());
    sum += AddLanes(sums);
    sum_of_squares += inputs.sum_of_squares;
    absmax = std::fmax(absmax, inputs.absmax);
  }
  void Merge(const Moments& later) {
    count += later.count;
    sum += later.sum;
    sum_of_squares += later.sum_of_squares;
    absmax = std::fmax(absmax, later.absmax);
  }
  GradientSpread Spread() const {
    if (count == 0) return {};
    const double mean = sum / count;
    return {absmax, std::sqrt(std::max(0.0, sum_of_squares / count - mean * mean))};
  }

 private:
  // Adds those of a chunk that are finite.
  void AddFinite(std::span<const float> values) {
    SumLanes sums{}, squares{};
    ForEachLane(values.size(), [&](size_t i, size_t lane) {
      if (!std::isfinite(values[i])) return;
      sums[lane] += double{values[i]};
      AddSquare(values[i], squares[lane]);
      ++count;
      absmax = std::fmax(absmax, std::fabs(values[i]));
    });
    sum += AddLanes(sums);
    sum_of_squares += AddLanes(squares);
  }
};

Moments MomentsOf(const TensorSources& sources, const Block& block) {
  Moments moments;
  const std::vector<const std::byte*> bytes = ReadBlock(sources, block);
  std::vector<float> values(std::min(block.count, kChunkElements));
  for (size_t r = 0; r < bytes.size(); ++r) {
    const Source& source = sources.recordings[r];
    const size_t count = ElementsOf(source, block);
    for (size_t begin = 0; begin < count; begin += kChunkElements) {
      const std::span<float> chunk(values.data(), std::min(kChunkElements, count - begin));
      const DType dtype = source.tensor->dtype;
      LoadFloats(dtype, bytes[r] + begin * DTypeSize(dtype), source.grad_scale, chunk);
      moments.Add(chunk);
    }
  }
  return moments;
}

}  // namespace

std::vector<GradientSpread> MeasureSpreads(const TraceStep& step) {
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::vector<Moments> moments(tensors.size());
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    std::vector<Moments> of_block(wave.size());
    ParallelFor(wave.size(),
                [&](size_t i) { of_block[i] = MomentsOf(tensors[wave[i].tensor], wave[i]); });
    for (size_t i = 0; i < wave.size(); ++i) moments[wave[i].tensor].Merge(of_block[i]);
  });
  std::vector<GradientSpread> spreads;
  for (const Moments& of_tensor : moments) spreads.push_back(of_tensor.Spread());
  return spreads;
}

}  // namespace dlsim
