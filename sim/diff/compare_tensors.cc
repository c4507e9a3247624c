// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/compare_tensors.h"

#include <cmath>
#include <cstddef>

#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/parallel_side_task.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/measure_element.h"

namespace dlsim::sim {
namespace {

bool IsFiniteInBoth(float a, float b) { return std::isfinite(a) && std::isfinite(b); }

uint64_t NonfiniteDifferences(std::span<const float> a, std::span<const float> b) {
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool alike = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    count += !IsFiniteInBoth(a[i], b[i]) && !alike;
  }
  return count;
}

// Compares at most kChunkElements.
PairSums CompareChunk(std::span<const float> a, std::span<const float> b) {
  SumLanes squares_a{}, squares_b{}, product{}, squares_of_difference{};
  size_t nonfinite = 0;
  ForEachLane(a.size(), [&](size_t i, size_t lane) {
    const bool finite = IsFiniteInBoth(a[i], b[i]);
    const double of_a = finite ? double{a[i]} : 0, of_b = finite ? double{b[i]} : 0;
    const double difference = of_b - of_a;
    squares_a[lane] += of_a * of_a;
    squares_b[lane] += of_b * of_b;
    product[lane] += of_a * of_b;
    squares_of_difference[lane] += difference * difference;
    nonfinite += !finite;
  });
  return {a.size(),
          nonfinite == 0 ? 0 : NonfiniteDifferences(a, b),
          AddLanes(squares_a),
          AddLanes(squares_b),
          AddLanes(product),
          AddLanes(squares_of_difference)};
}

// The recordings of a, then those of b.
TensorSources Join(const SourcePair& pair) {
  DLSIM_CHECK(pair.a->elements == pair.b->elements);
  TensorSources joined = *pair.a;
  joined.recordings.insert(joined.recordings.end(), pair.b->recordings.begin(),
                           pair.b->recordings.end());
  return joined;
}

// Loads the effective gradient of some of the parts of a block.
class EffectiveChunks {
 public:
  EffectiveChunks(ChunkLoader& loader, size_t first_part, size_t parts)
      : loader_(loader), first_part_(first_part), parts_(parts) {}

  // Returns the chunk that begins at `begin`, until the next call.
  std::span<const float> Load(size_t begin) {
    const size_t length = loader_.ChunkLength(begin);
    if (parts_ == 1 && loader_.Has(first_part_)) return loader_.Load(first_part_, begin);
    sum_.assign(length, 0.0f);
    for (size_t part = first_part_; part < first_part_ + parts_; ++part) {
      if (!loader_.Has(part)) continue;
      const std::span<const float> chunk = loader_.Load(part, begin);
      for (size_t i = 0; i < chunk.size(); ++i) sum_[i] += chunk[i];
    }
    return sum_;
  }

 private:
  ChunkLoader& loader_;
  size_t first_part_, parts_;
  std::vector<float> sum_;
};

PairSums CompareBlock(const TensorSources& joined, size_t parts_of_a, const Block& block) {
  // Every recording is a part; they are summed here.
  ChunkLoader loader(joined, block, Accumulation::kQuantizeThenSum);
  EffectiveChunks a(loader, 0, parts_of_a);
  EffectiveChunks b(loader, parts_of_a, joined.recordings.size() - parts_of_a);
  PairSums sums;
  for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
    sums.Merge(CompareChunk(a.Load(begin), b.Load(begin)));
  }
  return sums;
}

}  // namespace

void PairSums::Merge(const PairSums& later) {
  elements += later.elements;
  nonfinite_differences += later.nonfinite_differences;
  squares_a += later.squares_a;
  squares_b += later.squares_b;
  product += later.product;
  squares_of_difference += later.squares_of_difference;
}

std::vector<PairSums> CompareTensors(std::span<const SourcePair> pairs) {
  std::vector<TensorSources> joined;
  joined.reserve(pairs.size());
  for (const SourcePair& pair : pairs) joined.push_back(Join(pair));
  std::vector<PairSums> sums(pairs.size());
  ForEachWave(joined, [&](std::span<const Block> wave) {
    std::vector<PairSums> of_block(wave.size());
    uint64_t elements = 0;
    for (const Block& block : wave) elements += 2 * block.count;
    ParallelForWithSideTask(
        wave.size(),
        [&](size_t i) {
          const size_t tensor = wave[i].tensor;
          of_block[i] = CompareBlock(joined[tensor], pairs[tensor].a->recordings.size(), wave[i]);
        },
        elements);
    for (size_t i = 0; i < wave.size(); ++i) sums[wave[i].tensor].Merge(of_block[i]);
  });
  return sums;
}

}  // namespace dlsim::sim
