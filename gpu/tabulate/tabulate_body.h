// SPDX-License-Identifier: Apache-2.0
// What a thread block does to tabulate pieces of tensors; the same code for devices and, in tests,
// for the host.
//
// A significand is 2^23 + 2^12 H + L, with H below 2^11 and L below 2^12. All columns of BinadeSums
// but `powers` follow from, for each H, the number of values and their sum of L, and from sums of
// L^2. So a block keeps a bucket for each H of the binades in a window, in its shared memory: a
// value costs one addition to a bucket and one to a sum of squares. The window is where most values
// of a sample are; what falls outside goes to the table in global memory value by value. All sums
// are of integers, so that their order does not matter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dlsim/measure.h"
#include "gpu/base/device_code.h"
#include "src/table/tabulate.h"

namespace dlsim::gpu {

// Where the columns of BinadeSums and the parts of TableSums are, in words of 64 bits.
namespace column {

inline constexpr uint32_t kWord = sizeof(uint64_t);
inline constexpr uint32_t kCount = offsetof(BinadeSums, count) / kWord;
inline constexpr uint32_t kPowers = offsetof(BinadeSums, powers) / kWord;
inline constexpr uint32_t kSignificands = offsetof(BinadeSums, significands) / kWord;
inline constexpr uint32_t kLowSquares = offsetof(BinadeSums, low_squares) / kWord;
inline constexpr uint32_t kSet = offsetof(BinadeSums, set) / kWord;
inline constexpr uint32_t kBelow = offsetof(BinadeSums, below) / kWord;
inline constexpr uint32_t kRoundingUp = offsetof(BinadeSums, rounding_up) / kWord;
inline constexpr uint32_t kTailSums = offsetof(BinadeSums, tail_sums) / kWord;
inline constexpr uint32_t kTailSquares = offsetof(BinadeSums, tail_squares) / kWord;
inline constexpr uint32_t kColumns = sizeof(BinadeSums) / kWord;

inline constexpr uint32_t kZeros = offsetof(TableSums, zeros) / kWord;
inline constexpr uint32_t kNan = offsetof(TableSums, nan) / kWord;
inline constexpr uint32_t kInf = offsetof(TableSums, inf) / kWord;
inline constexpr uint32_t kAbsmax = offsetof(TableSums, absmax) / kWord;
static_assert(offsetof(TableSums, largest) == offsetof(TableSums, absmax) + sizeof(uint32_t));
inline constexpr uint32_t kBinades = offsetof(TableSums, binades) / kWord;
inline constexpr uint32_t kTableWords = sizeof(TableSums) / kWord;

}  // namespace column

inline constexpr uint32_t kTabulateThreads = 512;

// Values between barriers.
inline constexpr uint32_t kTabulateTile = 16384;
static_assert(kBlockElements % kTabulateTile == 0);

inline constexpr uint32_t kLowBits = BinadeSums::kFirstBit;
inline constexpr uint32_t kBuckets = 1u << (23 - kLowBits);
static_assert(BinadeSums::kBits == 23 - kLowBits && Binade::kMostBits == 23 - kLowBits);

// A bucket holds the number of its values above their sum of L. It is emptied once it has kFull of
// them; each thread of the block may then have added one more.
inline constexpr uint32_t kCountShift = 22;
inline constexpr uint32_t kLowSumMask = (1u << kCountShift) - 1;
inline constexpr uint32_t kFull = 511;
static_assert(kFull + kTabulateThreads < 1u << (32 - kCountShift));
static_assert((kFull + kTabulateThreads) * ((1u << kLowBits) - 1) <= kLowSumMask);

// The values that round up at Binade::kFewestTailBits or more are those of the highest buckets.
inline constexpr uint32_t kTailBuckets = kBuckets >> Binade::kFewestTailBits;

// Sums of L^2: of the highest buckets one for each, of the others one for each lane of a warp,
// since additions to the same word take turns.
inline constexpr uint32_t kLanes = 32, kSquares = kLanes + kTailBuckets;

// Values outside of the window that wait until all threads can work on them, and how many of a tile
// call for another window.
inline constexpr uint32_t kMostWaiting = 1024, kTooManyOutside = kTabulateTile / 8;

struct TabulateJob {
  const Piece* pieces = nullptr;  // of at most kBlockElements; those of a table follow each other
  uint32_t piece_count = 0;
  uint32_t blocks = 0;         // of the launch
  uint32_t binades = 0;        // of the window
  float scale = 1.0f;          // multiplies each value, unless it is 1
  uint64_t* tables = nullptr;  // TableSums, by Piece::tensor
};

// What a thread counts of a table by itself.
struct OfThread {
  uint32_t zeros = 0, nan = 0, inf = 0;
  uint32_t absmax = 0, largest = 0;
};

// Returns whether the values of bucket `high` round up if so many bits are kept.
DLSIM_HOST_DEVICE constexpr bool RoundsUp(uint32_t high, uint32_t bits) {
  return high >= kBuckets - (kBuckets >> bits);
}

// Adds values of one bucket, but for their sum of L^2, to the columns of a binade.
DLSIM_HOST_DEVICE inline void AddBucket(uint32_t high, uint64_t count, uint64_t low_sum,
                                        uint64_t (&columns)[column::kColumns]) {
  columns[column::kCount] += count;
  columns[column::kSignificands] += count * ((kBuckets + high) << kLowBits) + low_sum;
  DLSIM_UNROLL
  for (uint32_t i = 0; i < BinadeSums::kBits; ++i) {
    if ((high >> i & 1) == 0) continue;
    columns[column::kSet + i] += count;
    columns[column::kBelow + i] += count * ((high & ((1u << i) - 1)) << kLowBits) + low_sum;
  }
  DLSIM_UNROLL
  for (uint32_t bits = 1; bits <= Binade::kMostBits; ++bits) {
    if (RoundsUp(high, bits)) columns[column::kRoundingUp + bits - 1] += count;
  }
  if (high < kBuckets - kTailBuckets) return;
  const uint64_t lacks = (kBuckets - high) << kLowBits;  // to 2^24, without L
  DLSIM_UNROLL
  for (uint32_t i = 0; i < Binade::kTails; ++i) {
    if (!RoundsUp(high, Binade::kFewestTailBits + i)) continue;
    columns[column::kTailSums + i] += count * lacks - low_sum;
    columns[column::kTailSquares + i] += count * lacks * lacks - 2 * lacks * low_sum;
  }
}

// Adds a sum of L^2, of kSquares, to the columns of a binade.
DLSIM_HOST_DEVICE inline void AddSquares(uint32_t index, uint64_t sum,
                                         uint64_t (&columns)[column::kColumns]) {
  columns[column::kLowSquares] += sum;
  if (index < kLanes) return;
  const uint32_t high = kBuckets - kTailBuckets + (index - kLanes);
  DLSIM_UNROLL
  for (uint32_t i = 0; i < Binade::kTails; ++i) {
    if (RoundsUp(high, Binade::kFewestTailBits + i)) columns[column::kTailSquares + i] += sum;
  }
}

// Returns the index of the sum of L^2 of a value.
DLSIM_HOST_DEVICE inline uint32_t SquaresOf(uint32_t high, uint32_t thread) {
  constexpr uint32_t kFirst = kBuckets - kTailBuckets;
  return high < kFirst ? thread % kLanes : kLanes + (high - kFirst);
}

// The shared memory of a block, and a table. Words are 0 at first; all but `control` again after
// Flush.
class BlockSums {
 public:
  static constexpr uint32_t kBinadeWords = kBuckets + 2 * kSquares;
  static_assert(kBinadeWords % kLanes == 0);  // lanes add their squares without a conflict

  // The size of the memory.
  DLSIM_HOST_DEVICE static constexpr uint32_t Words(uint32_t binades) {
    return binades * (kBinadeWords + 1) + static_cast<uint32_t>(kExponents) + kMostWaiting +
           sizeof(Control) / sizeof(uint32_t);
  }

  DLSIM_HOST_DEVICE BlockSums(uint32_t* words, uint32_t binades)
      : binades_(binades),
        words_(words),
        powers_(words_ + binades * kBinadeWords),
        sample_(powers_ + binades),
        waiting_(sample_ + kExponents),
        control_(reinterpret_cast<Control*>(waiting_ + kMostWaiting)) {}

  // The following are called by each thread of the block; barriers separate them.

  DLSIM_HOST_DEVICE void Clear(uint32_t thread) const {
    for (uint32_t i = thread; i < Words(binades_); i += kTabulateThreads) words_[i] = 0;
  }

  DLSIM_HOST_DEVICE void ClearSample(uint32_t thread) const {
    for (uint32_t i = thread; i < kExponents; i += kTabulateThreads) sample_[i] = 0;
    if (thread == 0) control_->choice = 0;
  }

  DLSIM_HOST_DEVICE void AddToSample(uint32_t bits) const {
    const uint32_t magnitude = bits & ~codec::kSignBit;
    if (IsPlaced(magnitude)) AtomicAdd(&sample_[PlaceValue(magnitude).place], 1u);
  }

  // Finds the window that has most values of the sample; of several the lowest.
  DLSIM_HOST_DEVICE void Choose(uint32_t thread) const {
    for (uint32_t top = thread; top < kExponents; top += kTabulateThreads) {
      uint32_t count = 0;
      for (uint32_t d = 0; d < binades_ && d <= top; ++d) count += sample_[top - d];
      AtomicMax(&control_->choice, count << kPlaceBits | (kPlaceMask - top));
    }
  }

  // The highest place of the chosen window, with room for one that the sample does not have.
  DLSIM_HOST_DEVICE uint32_t ChosenTop() const {
    return kPlaceMask - (control_->choice & kPlaceMask) + 1;
  }

  // Adds a value to the window whose highest place is `top`.
  DLSIM_HOST_DEVICE void Add(uint32_t bits, uint32_t top, uint32_t thread, uint64_t* table,
                             OfThread& counts) const {
    const uint32_t magnitude = bits & ~codec::kSignBit;
    if (!IsPlaced(magnitude)) {
      counts.zeros += magnitude == 0 ? 1 : 0;
      counts.inf += magnitude == codec::kInfinityBits ? 1 : 0;
      counts.nan += magnitude > codec::kInfinityBits ? 1 : 0;
      return;
    }
    counts.absmax = counts.absmax < magnitude ? magnitude : counts.absmax;
    if (bits == magnitude && counts.largest < magnitude) counts.largest = magnitude;
    const PlacedValue value = PlaceValue(magnitude);
    const uint32_t binade = top - value.place;  // far above all if the value is above the window
    if (binade >= binades_) {
      const uint32_t index = AtomicAdd(&control_->outside, 1u);
      if (index >= kMostWaiting) return AddOne(magnitude, table);
      waiting_[index] = magnitude;
      return;
    }
    const uint32_t high = value.significand >> kLowBits & (kBuckets - 1);
    const uint32_t low = value.significand & ((1u << kLowBits) - 1);
    uint32_t* const of_binade = words_ + binade * kBinadeWords;
    const uint32_t before = AtomicAdd(&of_binade[high], 1u << kCountShift | low);
    uint32_t* const squares = of_binade + kBuckets + SquaresOf(high, thread);
    const uint32_t squares_before = AtomicAdd(squares, low * low);
    if (value.significand == codec::kImplicitBit) AtomicAdd(&powers_[binade], 1u);
    if (squares_before + low * low < squares_before) AtomicAdd(squares + kSquares, 1u);
    if (before >> kCountShift >= kFull) {
      AddTaken(value.place, high, AtomicTake(&of_binade[high]), table);
    }
  }

  // How many values fell outside of the window since the last reset.
  DLSIM_HOST_DEVICE uint32_t outside() const { return control_->outside; }

  DLSIM_HOST_DEVICE void AddWaiting(uint32_t thread, uint64_t* table) const {
    const uint32_t count = outside() < kMostWaiting ? outside() : kMostWaiting;
    for (uint32_t i = thread; i < count; i += kTabulateThreads) AddOne(waiting_[i], table);
  }

  DLSIM_HOST_DEVICE void ResetOutside(uint32_t thread) const {
    if (thread == 0) control_->outside = 0;
  }

  // Moves what the window holds to the table: a warp takes one binade after another.
  DLSIM_HOST_DEVICE void Flush(uint32_t thread, uint32_t top, uint64_t* table) const {
    const uint32_t lane = thread % kLanes;
    DLSIM_NO_UNROLL
    for (uint32_t binade = thread / kLanes; binade < binades_;
         binade += kTabulateThreads / kLanes) {
      if (binade > top) break;
      uint32_t* const of_binade = words_ + binade * kBinadeWords;
      uint64_t columns[column::kColumns] = {};
      DLSIM_NO_UNROLL
      for (uint32_t high = lane; high < kBuckets; high += kLanes) {
        const uint32_t bucket = of_binade[high];
        if (bucket == 0) continue;
        of_binade[high] = 0;
        AddBucket(high, bucket >> kCountShift, bucket & kLowSumMask, columns);
      }
      uint32_t* const squares = of_binade + kBuckets;
      DLSIM_NO_UNROLL
      for (uint32_t i = lane; i < kSquares; i += kLanes) {
        AddSquares(i, uint64_t{squares[kSquares + i]} << 32 | squares[i], columns);
        squares[i] = squares[kSquares + i] = 0;
      }
      if (lane == 0) {
        columns[column::kPowers] = powers_[binade];
        powers_[binade] = 0;
      }
      if (!AnyOfWarp((columns[column::kCount] | columns[column::kLowSquares] |
                      columns[column::kPowers]) != 0)) {
        continue;
      }
      uint64_t* const to = table + column::kBinades + (top - binade) * column::kColumns;
      DLSIM_UNROLL
      for (uint32_t i = 0; i < column::kColumns; ++i) AddOfWarp(to + i, columns[i]);
    }
  }

  // Moves what threads counted to the table.
  DLSIM_HOST_DEVICE static void Move(OfThread& counts, uint64_t* table) {
    AddOfWarp(table + column::kZeros, counts.zeros);
    AddOfWarp(table + column::kNan, counts.nan);
    AddOfWarp(table + column::kInf, counts.inf);
    // Half a word each.
    auto* const ends = reinterpret_cast<uint32_t*>(table + column::kAbsmax);
    if (counts.absmax > 0) AtomicMax(ends, counts.absmax);
    if (counts.largest > 0) AtomicMax(ends + 1, counts.largest);
    counts = {};
  }

 private:
  struct Control {
    uint32_t outside;
    uint32_t choice;  // count in the sample, then the window
  };
  static constexpr uint32_t kPlaceBits = 9, kPlaceMask = (1u << kPlaceBits) - 1;
  static_assert(kExponents <= kPlaceMask);
  static_assert(uint64_t{kTabulateTile} << kPlaceBits < uint64_t{1} << 32);

  // Whether a magnitude is nonzero and finite: 0 wraps.
  DLSIM_HOST_DEVICE static bool IsPlaced(uint32_t magnitude) {
    return magnitude - 1 < codec::kInfinityBits - 1;
  }

  DLSIM_HOST_DEVICE static void AddColumns(uint32_t place,
                                           const uint64_t (&columns)[column::kColumns],
                                           uint64_t* table) {
    uint64_t* const to = table + column::kBinades + place * column::kColumns;
    DLSIM_UNROLL
    for (uint32_t i = 0; i < column::kColumns; ++i) {
      if (columns[i] != 0) AtomicAdd(to + i, columns[i]);
    }
  }

  // Adds what a bucket held to the table.
  DLSIM_HOST_DEVICE DLSIM_RARE static void AddTaken(uint32_t place, uint32_t high, uint32_t bucket,
                                                    uint64_t* table) {
    uint64_t columns[column::kColumns] = {};
    AddBucket(high, bucket >> kCountShift, bucket & kLowSumMask, columns);
    AddColumns(place, columns, table);
  }

  // Adds a value to the table.
  DLSIM_HOST_DEVICE DLSIM_RARE static void AddOne(uint32_t magnitude, uint64_t* table) {
    const PlacedValue value = PlaceValue(magnitude);
    const uint32_t high = value.significand >> kLowBits & (kBuckets - 1);
    const uint64_t low = value.significand & ((1u << kLowBits) - 1);
    uint64_t columns[column::kColumns] = {};
    AddBucket(high, 1, low, columns);
    AddSquares(SquaresOf(high, 0), low * low, columns);
    columns[column::kPowers] = value.significand == codec::kImplicitBit ? 1 : 0;
    AddColumns(value.place, columns, table);
  }

  uint32_t binades_;
  uint32_t* words_;
  uint32_t* powers_;   // [binade]
  uint32_t* sample_;   // [place]
  uint32_t* waiting_;  // magnitudes
  Control* control_;
};

// Calls body(float32 bits) for this thread's share of the elements [begin, end) of a piece.
template <DType kDType, class Body>
DLSIM_HOST_DEVICE inline void ForEachOfTile(const Piece& piece, uint32_t begin, uint32_t end,
                                            float scale, uint32_t thread, const Body& body) {
  using Element = typename ElementOf<kDType>::Type;
  const auto* const elements = reinterpret_cast<const Element*>(piece.values) + begin;
  const auto take = [&](Element element) {
    uint32_t bits = BitCast<uint32_t>(ToFloat<kDType>(element));
    if (piece.inverse_grad_scale != 1.0f) bits = ScaleBits(bits, piece.inverse_grad_scale);
    if (scale != 1.0f) bits = ScaleBits(bits, scale);
    body(bits);
  };
  const uint32_t count = end - begin;
  const uint32_t groups = IsAligned(elements) ? count / kGroupElements : 0;
  DLSIM_NO_UNROLL
  for (uint32_t g = thread; g < groups; g += kTabulateThreads) {
    Element group[kGroupElements];
    LoadGroup(elements + g * kGroupElements, group);
    DLSIM_UNROLL
    for (uint32_t i = 0; i < kGroupElements; ++i) take(group[i]);
  }
  DLSIM_NO_UNROLL
  for (uint32_t i = groups * kGroupElements + thread; i < count; i += kTabulateThreads) {
    take(elements[i]);
  }
}

// Tabulates this block's share of the pieces. `threads(body)` calls body(thread, OfThread&) for
// each thread of the block, and ends with a barrier.
template <class Threads>
DLSIM_HOST_DEVICE inline void TabulateBlock(const TabulateJob& job, uint32_t block,
                                            const BlockSums& sums, const Threads& threads) {
  const auto first_of = [&](uint32_t b) {
    return static_cast<uint32_t>(uint64_t{b} * job.piece_count / job.blocks);
  };
  uint64_t* table = nullptr;
  uint32_t top = 0;
  bool has_window = false;
  const auto flush = [&] {
    threads([&](uint32_t thread, OfThread&) { sums.Flush(thread, top, table); });
    has_window = false;
  };
  const auto finish_table = [&] {
    if (has_window) flush();
    threads([&](uint32_t, OfThread& counts) { BlockSums::Move(counts, table); });
  };
  threads([&](uint32_t thread, OfThread&) { sums.Clear(thread); });
  DLSIM_NO_UNROLL
  for (uint32_t p = first_of(block); p < first_of(block + 1); ++p) {
    const Piece piece = job.pieces[p];
    uint64_t* const of_piece = job.tables + uint64_t{piece.tensor} * column::kTableWords;
    if (table != nullptr && of_piece != table) finish_table();
    table = of_piece;
    DLSIM_NO_UNROLL
    for (uint32_t begin = 0; begin < piece.count; begin += kTabulateTile) {
      const uint32_t rest = piece.count - begin;
      const uint32_t end = begin + (rest < kTabulateTile ? rest : kTabulateTile);
      if (!has_window) {
        threads([&](uint32_t thread, OfThread&) { sums.ClearSample(thread); });
        threads([&](uint32_t thread, OfThread&) {
          DispatchDType(piece.dtype, [&](auto tag) {
            ForEachOfTile<decltype(tag)::value>(piece, begin, end, job.scale, thread,
                                                [&](uint32_t bits) { sums.AddToSample(bits); });
          });
        });
        threads([&](uint32_t thread, OfThread&) { sums.Choose(thread); });
        top = sums.ChosenTop();
        has_window = true;
      }
      threads([&](uint32_t thread, OfThread& counts) {
        DispatchDType(piece.dtype, [&](auto tag) {
          ForEachOfTile<decltype(tag)::value>(
              piece, begin, end, job.scale, thread,
              [&](uint32_t bits) { sums.Add(bits, top, thread, table, counts); });
        });
      });
      const uint32_t outside = sums.outside();
      threads([](uint32_t, OfThread&) {});  // all have read it
      if (outside == 0) continue;
      threads([&](uint32_t thread, OfThread&) { sums.AddWaiting(thread, table); });
      threads([&](uint32_t thread, OfThread&) { sums.ResetOutside(thread); });
      if (outside > kTooManyOutside) flush();
    }
  }
  if (table != nullptr) finish_table();
}

}  // namespace dlsim::gpu
