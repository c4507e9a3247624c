// SPDX-License-Identifier: Apache-2.0
// Emulates sums, dot products and matrix products whose sums are kept in few bits: every
// addition is the exact sum, rounded once by the codec. Rules: docs/accumulation.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/philox.h"

namespace dlsim {

// Most mantissa bits of a format that sums are kept in: more and the 32 random bits of stochastic
// rounding would not be decided by a double that is rounded to odd.
inline constexpr int kMaxAccumulatorMantissa = 19;

// What a value is rounded to.
struct Precision {
  enum class Kind : uint8_t {
    kExact,    // not at all
    kFloat32,  // float32, to nearest even
    kFormat,   // `conversion`
  };
  Kind kind = Kind::kFloat32;
  Conversion conversion = {};

  friend constexpr bool operator==(const Precision&, const Precision&) = default;
};

inline constexpr Precision kExactPrecision = {Precision::Kind::kExact, {}};
inline constexpr Precision kFloat32Precision = {Precision::Kind::kFloat32, {}};

// Returns the precision of a conversion.
constexpr Precision FormatPrecision(const Conversion& conversion) {
  return {Precision::Kind::kFormat, conversion};
}

// A chunk length that makes one chunk of any array.
inline constexpr uint64_t kOneChunk = std::numeric_limits<uint64_t>::max();

// How to sum. The elements of a chunk are added to a partial sum in index order, starting from +0;
// then the partial sums are added in chunk order, starting from +0, unless there is one chunk: then
// its partial sum is the result.
struct AccumulationOptions {
  Precision inputs = kFloat32Precision;       // each value is rounded to this first
  Precision terms = kExactPrecision;          // and each product to this before it is added
  Precision accumulator = kFloat32Precision;  // of partial sums; not kExact
  Precision combiner = kFloat32Precision;     // of sums of partial sums; not kExact
  uint64_t chunk_length = kOneChunk;          // at least 1

  // For stochastic rounding. Inputs use this stream with the index of the element (those of a
  // second array the stream after it), terms the stream two after it with the index of the term,
  // partial sums the third with the same index, sums of partial sums the fourth with the index of
  // the chunk.
  RandomStream random = {};
};

// What happened to additions. Counts of both levels of sums.
struct AdditionCounts {
  uint64_t additions = 0;
  uint64_t swamped = 0;    // changed nothing although the addend was not zero
  uint64_t overflows = 0;  // finite terms or sums that became infinite (or were clamped)

  void Merge(const AdditionCounts& other) {
    additions += other.additions;
    swamped += other.swamped;
    overflows += other.overflows;
  }
  friend bool operator==(const AdditionCounts&, const AdditionCounts&) = default;
};

// Emulated sums; one value for a reduction to a scalar.
struct Accumulated {
  std::vector<float> values;
  AdditionCounts counts;
};

// An array seen as [outer][length][inner] in C order, to be summed over `length`.
struct AxisShape {
  uint64_t outer = 1, length = 1, inner = 1;
};

// [rows][depth] times [depth][columns].
struct MatMulShape {
  uint64_t rows = 1, depth = 1, columns = 1;
};

// All functions answer for each of `options`, on all threads. The result is the same for any number
// of threads. The index of a term is that of its element; in a matrix product the index of the
// result times `depth` plus that of the term.

// Sums an array.
std::vector<Accumulated> Sum(std::span<const float> values,
                             std::span<const AccumulationOptions> options);

// Sums the squares of an array.
std::vector<Accumulated> SumOfSquares(std::span<const float> values,
                                      std::span<const AccumulationOptions> options);

// Sums the products of two arrays of one length.
std::vector<Accumulated> Dot(std::span<const float> a, std::span<const float> b,
                             std::span<const AccumulationOptions> options);

// Sums along one axis; the result is [outer][inner].
std::vector<Accumulated> SumAxis(std::span<const float> values, const AxisShape& shape,
                                 std::span<const AccumulationOptions> options);

// Multiplies two matrices; the result is [rows][columns].
std::vector<Accumulated> MatMul(std::span<const float> a, std::span<const float> b,
                                const MatMulShape& shape,
                                std::span<const AccumulationOptions> options);

// Rounds each value to a precision as the functions above round their inputs.
std::vector<float> RoundInputs(std::span<const float> values, const Precision& precision,
                               const RandomStream& random);

}  // namespace dlsim
