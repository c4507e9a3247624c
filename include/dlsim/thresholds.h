// SPDX-License-Identifier: Apache-2.0
// Answers many measurements of an array in one pass and without quantising anything. Rounding is
// monotone, so that what a conversion does to a value depends only on which thresholds the value's
// magnitude has reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/measure.h"

namespace dlsim {

enum class Sign : uint8_t { kPositive, kNegative };

// Float32 magnitude bits at which the result of a scaled conversion changes its kind, for values of
// one sign; kInfinityBits = at no finite magnitude.
struct Thresholds {
  uint32_t nonzero = 1;                      // from here on the result is not zero
  uint32_t normal = 1;                       // from here on it is not subnormal either
  uint32_t overflow = codec::kInfinityBits;  // from here on it overflows (see TensorStats)

  friend bool operator==(const Thresholds&, const Thresholds&) = default;
};

// Finds the thresholds by bisection through Encode: right for every scale, also where scaling
// itself overflows or underflows. Not for stochastic rounding, nor for a NaN as scale.
Thresholds FindThresholds(const Conversion& conversion, float scale, Sign sign);

// What TensorStats says of the input alone.
struct InputStats {
  uint64_t elements = 0;
  uint64_t zeros = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  float absmax = 0;           // largest finite magnitude
  double sum_of_squares = 0;  // of the finite values, in the order of measure.h

  // Adds the statistics of what follows in index order.
  void Merge(const InputStats& later);
};

// A sorted set of magnitudes ("edges") at which arrays are counted; made once, used for any number
// of arrays.
class EdgeSet {
 public:
  // `counted` are the edges to count at, `summed` those to sum squares at as well, in any order:
  // float32 magnitude bits from 0 to kInfinityBits.
  EdgeSet(std::vector<uint32_t> counted, std::vector<uint32_t> summed);

  std::span<const uint32_t> counted() const { return counted_; }  // has those of summed(), too
  std::span<const uint32_t> summed() const { return summed_; }

  // Position in counted() of each edge of summed().
  std::span<const size_t> summed_positions() const { return summed_positions_; }

  // Edges that share their lower 23 bits, as a format's do at scales 2^k: they differ by whole
  // binades, which are quickly compared.
  struct PhaseGroup {
    uint32_t phase = 0;             // the lower 23 bits
    std::vector<size_t> positions;  // in counted(), ascending
    std::vector<int8_t> binades;    // the edge's upper bits less 127
  };
  std::span<const PhaseGroup> phase_groups() const { return phase_groups_; }

  // Positions of an edge of the set in counted() and summed().
  size_t CountedIndex(uint32_t edge) const;
  size_t SummedIndex(uint32_t edge) const;

 private:
  std::vector<uint32_t> counted_, summed_;
  std::vector<PhaseGroup> phase_groups_;
  std::vector<size_t> summed_positions_;
};

// What lies below the edges of a set.
struct EdgeStats {
  InputStats input;
  std::vector<uint64_t> below;        // per edge of counted(): nonzero magnitudes below it
  std::vector<double> squares_below;  // per edge of summed(): the sum of their squares, in order

  // Adds the statistics of what follows in index order.
  void Merge(const EdgeStats& later);
};

// Measures an array at the edges of a set, on all threads.
EdgeStats MeasureEdges(std::span<const float> values, const EdgeSet& edges);

struct ChunkRange;

// Measures chunk after chunk of an array on the calling thread: the unit from which larger
// measurements are merged.
class EdgeMeasurer {
 public:
  explicit EdgeMeasurer(const EdgeSet& edges);  // `edges` must live as long as this

  // Adds the next chunk: kChunkElements values, or fewer at the end of a block.
  void AddChunk(std::span<const float> values);

  const EdgeStats& stats() const { return stats_; }

 private:
  void AddRows(std::span<const float> rows, size_t padding);
  void CountBelow(std::span<const float> rows, const ChunkRange& range);
  void SumBelow(std::span<const float> rows, const ChunkRange& range);

  const EdgeSet& edges_;
  EdgeStats stats_;
  std::vector<uint64_t> chunk_below_;  // counts of the current chunk
};

// What TensorStats says of one question, but for the quantised sum of squares.
struct OutcomeCounts {
  uint64_t underflow = 0;
  uint64_t subnormal = 0;
  uint64_t overflow = 0;
  uint64_t nonfinite_outputs = 0;
  double underflow_sum_of_squares = 0;
};

struct MeasuredCounts {
  InputStats input;
  std::vector<OutcomeCounts> outcomes;  // per question
};

// Returns whether thresholds of magnitudes answer a question: not for ru, rd and sr rounding, which
// also look at the sign or at random bits, nor for a NaN as scale.
bool CanCount(const Measurement& question);

// Measurements prepared for one pass; made once, used for any number of arrays.
class CountingQuestions {
 public:
  // For questions that CanCount.
  explicit CountingQuestions(std::span<const Measurement> questions);

  const EdgeSet& edges() const { return edges_; }

  // Returns the answers that the edges' statistics hold.
  MeasuredCounts Answer(const EdgeStats& stats) const;

 private:
  CountingQuestions(std::span<const Measurement> questions, std::span<const Thresholds> thresholds);

  struct Question {
    size_t nonzero, normal, overflow;  // positions of its thresholds among edges().counted()
    size_t energy;                     // and of `nonzero` among edges().summed()
    bool zero_to_nonfinite, infinity_to_nonfinite, overflow_to_nonfinite;
  };
  std::vector<Question> questions_;
  EdgeSet edges_;
};

// Answers many questions about an array as Measure does, counter for counter and digit for digit.
// Directed rounding (ru, rd) takes a pass of its own for each question. Not for stochastic
// rounding.
MeasuredCounts MeasureCounts(std::span<const float> values, std::span<const Measurement> questions);

}  // namespace dlsim
