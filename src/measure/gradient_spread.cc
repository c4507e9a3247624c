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
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// Sums over the finite elements of one block or tensor.
struct Moments {
  double count = 0, sum = 0, sum_of_squares = 0;
  float absmax = 0;

  // Adds a chunk. Nearly all are finite: then nothing but the two sums is left to be done in order.
  void Add(std::span<const float> values) {
    const ChunkInputs inputs = MeasureInputs(values);
    if (!inputs.finite) {
      for (const float value : values) {
        if (std::isfinite(value)) Add({&value, 1}, std::fabs(value));
      }
      return;
    }
    Add(values, inputs.absmax);
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
  void Add(std::span<const float> finite, float largest) {
    for (const float value : finite) {
      sum += double{value};
      sum_of_squares += double{value} * double{value};
    }
    count += static_cast<double>(finite.size());
    absmax = std::fmax(absmax, largest);
  }
};

Moments MomentsOf(const TensorSources& sources, const Block& block) {
  Moments moments;
  std::vector<float> values(kChunkElements);
  const std::vector<const std::byte*> bytes = ReadBlock(sources, block);
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
  const std::vector<TensorSources> tensors = CollectTensors(step);
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
