// SPDX-License-Identifier: Apache-2.0
// The table of a tensor: exact integers from which follows all that rounding to nearest does to it,
// in any format of up to 11 significand bits, at any power of two as the loss scale.
//
// A finite value is M * 2^(e - 23) with the significand 2^23 <= M < 2^24; so is a subnormal of
// float32, in the binade of its leading bit. A power of two changes e only, and rounding depends on
// M and on the distance of the format's values there, its quantum of 2^(d + 23) in units of M. So
// each binade is counted once, and tables of the pieces of a tensor add up to that of the whole:
// any order, number of threads, vector width and device gives the same table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/tensor_stats.h"

namespace dlsim {

__extension__ using uint128_t = unsigned __int128;

// What is counted of the values of one binade, of either sign. All sums are in units of
// 2^(exponent - 23), or of its square.
struct Binade {
  // Quanta for which errors are summed: 2^(kFirstQuantum + i + 23) units for the i-th. At the last,
  // a binade lies between half the smallest value of a format and that value; past it, all is lost.
  static constexpr int kFirstQuantum = -10;
  static constexpr size_t kQuanta = 12;

  // Most bits of a significand, with the leading one.
  static constexpr int kMostBits = 11;

  // Formats with fewer bits have no sums of the values that round up to the next binade.
  static constexpr int kFewestTailBits = 7;
  static constexpr size_t kTails = kMostBits - kFewestTailBits + 1;

  int32_t exponent = 0;  // of 2: -149 to 127
  uint64_t count = 0;
  uint64_t powers = 0;        // M = 2^23: ties at half the smallest value of a format
  uint64_t significands = 0;  // sum of M
  uint128_t squares = 0;      // sum of M^2

  // By b - 1: values that round up into the next binade if b bits of the significand are kept,
  // M >= 2^24 - 2^(23 - b). For b of kFewestTailBits or more the sums of what they lack to 2^24,
  // and of its squares, in tail_sums and tail_squares, by b - kFewestTailBits.
  std::array<uint64_t, kMostBits> rounding_up = {};
  std::array<uint64_t, kTails> tail_sums = {};
  std::array<uint128_t, kTails> tail_squares = {};

  // By quantum: sum of the squared distances to the nearest multiple.
  std::array<uint128_t, kQuanta> errors = {};

  void Add(const Binade& other);

  friend bool operator==(const Binade&, const Binade&) = default;
};

struct TensorTable {
  uint64_t elements = 0;
  uint64_t zeros = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  float absmax = 0;           // the largest finite magnitude
  float largest = 0;          // the largest finite value; 0 if none is positive
  double sum_of_squares = 0;  // of the finite values: the exact sum, rounded

  // Of a tensor with few values, which take less room than its binades would: its nonzero finite
  // values by ascending magnitude, positive ones first. Such a table answers as the others do.
  static constexpr size_t kMostValues = 512;
  std::vector<float> values = {};

  std::vector<Binade> binades = {};  // that are not empty, ascending

  // Channels by the largest magnitude in each, in quarters of binades: pairs of the bits of that
  // magnitude above its 21 lowest, and how many channels; ascending. Of channels that are not zero,
  // and of tensors with several. Pieces of a channel count as channels.
  std::vector<std::pair<uint32_t, uint64_t>> channels = {};

  uint64_t nonzero_finite() const { return elements - zeros - nan - inf; }

  // Returns the counters of the values themselves; those of a conversion are zero.
  TensorStats Inputs() const;

  // Adds another piece of the tensor.
  void Add(TensorTable piece);

  // Returns the table of the values times a mantissa, 1 <= mantissa < 2, in float32, without
  // channels. Nothing if the table does not have the values.
  std::optional<TensorTable> Times(float mantissa) const;

  friend bool operator==(const TensorTable&, const TensorTable&) = default;
};

// Tabulates arrays on the calling thread; the result is that of all that was added.
class Tabulator {
 public:
  Tabulator();
  ~Tabulator();
  Tabulator(const Tabulator&) = delete;
  Tabulator& operator=(const Tabulator&) = delete;

  void Add(std::span<const float> values);

  // Returns the table of what was added, without channels, and begins again.
  TensorTable Take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the table of an array, on all threads.
TensorTable Tabulate(std::span<const float> values);

// Why a table does not tell what a conversion at a scale does.
enum class NotInTable : uint8_t {
  kRounding,  // not to nearest with ties to even
  kScale,     // no positive power of two
  kBits,      // more than 11 bits of significand
  kEnds,      // values at an end of a format of that kind: see WhyNot
};

// Returns the mantissa of a scale, at least 1 and below 2; 1 of a scale that is not positive or not
// finite. 1 says that the scale is no case for TensorTable::Times.
float MantissaOf(float scale);

// Returns why the table does not tell, in a phrase: "rounds otherwise than to nearest".
const char* WhyNot(NotInTable reason);

// Returns whether a table can tell anything of a conversion at a scale; some tensors have values
// for which it does not even so.
std::optional<NotInTable> OutsideTables(const Conversion& conversion, float scale);

// A conversion at a scale, made ready for all tables that are asked about it.
struct TableQuestion {
  // The values of a format, as far as rounding to nearest asks for them.
  struct Grid {
    explicit Grid(const Conversion& conversion);

    int bits;        // of a significand
    int lowest;      // exponent of the smallest normal value
    int highest;     // exponent of the largest finite value
    bool infinity;   // the format has one: overflow begins where rounding leaves the highest binade
    bool gradual;    // it has subnormals
    bool flushes;    // which become zero
    bool saturates;  // instead of overflowing

    // The distance of the format's values at a scaled binade: its exponent, relative to the binade.
    // Above 1, all values of the binade become zero.
    int QuantumAt(int scaled) const { return std::max(scaled, lowest) - (bits - 1) - scaled; }
  };

  TableQuestion(const Conversion& conversion, float scale);

  CodecSpec spec;
  float scale;
  int log2_scale;
  std::optional<NotInTable> outside;  // see OutsideTables
  Grid grid;
};

// Returns the counters of docs/numerics.md, section 4, for a conversion at a scale of 2^k; each sum
// is the exact one, rounded once. Nothing if the table does not tell:
// * the conversion is one of OutsideTables;
// * values at the top of a format without infinity, or below the smallest normal value of one
//   without subnormals;
// * with fewer than 7 bits, values that are just rounded up to infinity or to the smallest normal
//   value, where those are clamped or flushed or where other values of their binade are;
// * the scale is below 1 and takes values below float32's normal ones that the format still has.
std::optional<TensorStats> Ask(const TensorTable& table, const Conversion& conversion, float scale);

// Asks a table several questions; what they have in common is found once.
class TableReader {
 public:
  TableReader();
  TableReader(TableReader&&) noexcept;
  ~TableReader();

  // Takes a table in place of that before. It must live as long as it is asked.
  void Open(const TensorTable& table);

  // As the function of this name.
  std::optional<TensorStats> Ask(const TableQuestion& question);

  // Returns the sum of squared errors of values in a question's format, to nearest at its scale,
  // where none overflows; of those that do it is not told. Scaling counts as exact, also to
  // subnormal float32; below the smallest normal value of a format without subnormals all is lost.
  // Faster than Ask: the sums of binades are added in float64, from the lowest on.
  double ErrorSquares(const TableQuestion& question);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The exponents of nonzero finite values; empty if the lowest is above the highest.
struct ExponentRange {
  int lowest = std::numeric_limits<float>::max_exponent;
  int highest = -lowest;
};

// Returns the exponent of a scale at which a conversion to nearest does the same to values in this
// range as at 2^log2_scale: where all become normal values, far from overflow, that does not
// matter.
int LikeExponent(const Conversion& conversion, int log2_scale, ExponentRange range);

// Returns how many values have a magnitude from these bits on, NaN included. Nothing if they are
// within a binade that is not empty, and the table has no list of values.
std::optional<uint64_t> CountFrom(const TensorTable& table, uint32_t magnitude);

}  // namespace dlsim
