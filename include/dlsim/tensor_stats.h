// SPDX-License-Identifier: Apache-2.0
// What one conversion did to one array: the counters of docs/numerics.md, section 4, and the table
// by which all else adds and compares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace dlsim {

// A value that is known to lie in [low, high].
template <class T>
struct Bracket {
  T low{}, high{};

  bool exact() const { return low == high; }
  T Middle() const { return low + (high - low) / 2; }
  void Add(const Bracket& other) {
    low += other.low;
    high += other.high;
  }
  // Becomes the bracket of the larger of two values.
  void RaiseTo(const Bracket& other) {
    low = low < other.low ? other.low : low;
    high = high < other.high ? other.high : high;
  }
  friend bool operator==(const Bracket&, const Bracket&) = default;
};

// Returns what lies from one number to another; at least nothing.
template <class T>
Bracket<T> Between(const Bracket<T>& from, const Bracket<T>& to) {
  const auto less = [](T a, T b) { return a > b ? a - b : T{0}; };
  return {less(to.low, from.high), less(to.high, from.low)};
}

// Counts are exact. Sums are float64 in a fixed order (measure.h), so that every machine, thread
// count and device gives the same digits; they are merged in index order for the same reason.
struct TensorStats {
  uint64_t elements = 0;
  uint64_t zeros = 0;               // input is +0 or -0
  uint64_t nan = 0;                 // input
  uint64_t inf = 0;                 // input
  uint64_t underflow = 0;           // finite nonzero input, output +-0
  uint64_t subnormal = 0;           // finite nonzero input, output a nonzero subnormal
  uint64_t overflow = 0;            // finite input, output infinite (or clamped when saturating)
  uint64_t nonfinite_outputs = 0;   // output is infinity or NaN
  float absmax = 0;                 // largest finite input magnitude; never NaN
  double sum_of_squares = 0;        // of the finite inputs
  double error_sum_of_squares = 0;  // of result / scale - input, where both are finite
  double underflow_sum_of_squares = 0;  // of the inputs that underflow
  double quantized_sum_of_squares = 0;  // of the outputs after unscaling; may be inf or NaN

  uint64_t nonfinite() const { return nan + inf; }
  uint64_t nonzero_finite() const { return elements - zeros - nonfinite(); }

  // Share of the nonzero finite inputs that became zero.
  double underflow_fraction() const {
    const uint64_t base = nonzero_finite();
    return base == 0 ? 0 : static_cast<double>(underflow) / static_cast<double>(base);
  }

  // Share of the inputs' sum of squares that became zero.
  double energy_lost() const {
    return sum_of_squares == 0 ? 0 : underflow_sum_of_squares / sum_of_squares;
  }

  // The relative squared error: 0 if nothing changed, 1 if all became zero.
  double harm() const { return sum_of_squares == 0 ? 0 : error_sum_of_squares / sum_of_squares; }

  // Adds the statistics of what follows in index order.
  void Merge(const TensorStats& later);

  friend bool operator==(const TensorStats&, const TensorStats&) = default;
};

// What a profile knows of the counters that it may leave open.
struct CounterBrackets {
  Bracket<uint64_t> underflow, subnormal, overflow;
  Bracket<double> underflow_sum_of_squares;
  // Between edges only the underflow's part of the error is known: never exact, and not looked at
  // by exact().
  Bracket<double> error_sum_of_squares;

  bool exact() const;
  void Merge(const CounterBrackets& other);

  // Returns the range of a member or function of TensorStats; `stats` are of the same elements.
  template <auto kOf>
  auto RangeOf(const TensorStats& stats) const;
};

// How the counters of two arrays become those of both; or it follows from other counters.
enum class Merging : uint8_t { kSum, kOrderedSum, kLargest, kFollows };

// Whether a profile leaves a range of a counter: never, or as far as of those it follows from.
struct NeverOpen {};
struct OpenAsOthers {};

// What there is to know of one counter.
template <class Of, class Open = NeverOpen>
struct CounterRow {
  const char* name;
  Of of;  // data member or function: std::invoke(of, stats) is the value
  Merging merging;
  Open open = {};  // or the member of CounterBrackets
};
template <class Of>
CounterRow(const char*, Of, Merging) -> CounterRow<Of>;
template <class Of, class Open>
CounterRow(const char*, Of, Merging, Open) -> CounterRow<Of, Open>;

// In the order of all that lists counters.
inline constexpr std::tuple kCounters = {
    CounterRow{"elements", &TensorStats::elements, Merging::kSum},
    CounterRow{"zeros", &TensorStats::zeros, Merging::kSum},
    CounterRow{"nonfinite", &TensorStats::nonfinite, Merging::kFollows},
    CounterRow{"nan", &TensorStats::nan, Merging::kSum},
    CounterRow{"inf", &TensorStats::inf, Merging::kSum},
    CounterRow{"nonzero_finite", &TensorStats::nonzero_finite, Merging::kFollows},
    CounterRow{"underflow", &TensorStats::underflow, Merging::kSum, &CounterBrackets::underflow},
    CounterRow{"subnormal", &TensorStats::subnormal, Merging::kSum, &CounterBrackets::subnormal},
    CounterRow{"overflow", &TensorStats::overflow, Merging::kSum, &CounterBrackets::overflow},
    CounterRow{"nonfinite_outputs", &TensorStats::nonfinite_outputs, Merging::kSum},
    CounterRow{"absmax", &TensorStats::absmax, Merging::kLargest},
    CounterRow{"sum_of_squares", &TensorStats::sum_of_squares, Merging::kOrderedSum},
    CounterRow{"error_sum_of_squares", &TensorStats::error_sum_of_squares, Merging::kOrderedSum},
    CounterRow{"underflow_sum_of_squares", &TensorStats::underflow_sum_of_squares,
               Merging::kOrderedSum, &CounterBrackets::underflow_sum_of_squares},
    CounterRow{"quantized_sum_of_squares", &TensorStats::quantized_sum_of_squares,
               Merging::kOrderedSum},
    CounterRow{"underflow_fraction", &TensorStats::underflow_fraction, Merging::kFollows,
               OpenAsOthers{}},
    CounterRow{"energy_lost", &TensorStats::energy_lost, Merging::kFollows, OpenAsOthers{}},
};

// A row as a type: loops over rows are unrolled, and cost what a list by hand would.
template <size_t kIndex>
struct CounterAt {
  static constexpr auto kRow = std::get<kIndex>(kCounters);
  static constexpr bool kIsMember = std::is_member_object_pointer_v<decltype(kRow.of)>;
  static constexpr bool kHasBracket = std::is_member_object_pointer_v<decltype(kRow.open)>;
  static constexpr bool kIsOpen = !std::is_same_v<decltype(kRow.open), NeverOpen>;
};

// Calls visit(row) with a CounterAt for each row, in order.
template <class Visit>
void ForEachCounter(const Visit& visit) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) { (visit(CounterAt<kIndex>()), ...); }
  (std::make_index_sequence<std::tuple_size_v<decltype(kCounters)>>());
}

inline void TensorStats::Merge(const TensorStats& later) {
  ForEachCounter([&](auto row) {
    if constexpr (row.kIsMember) {
      auto& into = this->*row.kRow.of;
      const auto from = later.*row.kRow.of;
      if constexpr (row.kRow.merging == Merging::kLargest) {
        into = from > into ? from : into;
      } else {
        into += from;
      }
    }
  });
}

inline bool CounterBrackets::exact() const {
  bool exact = true;
  ForEachCounter([&](auto row) {
    if constexpr (row.kHasBracket) exact &= (this->*row.kRow.open).exact();
  });
  return exact;
}

inline void CounterBrackets::Merge(const CounterBrackets& other) {
  ForEachCounter([&](auto row) {
    if constexpr (row.kHasBracket) (this->*row.kRow.open).Add(other.*row.kRow.open);
  });
  error_sum_of_squares.Add(other.error_sum_of_squares);
}

template <auto kOf>
auto CounterBrackets::RangeOf(const TensorStats& stats) const {
  TensorStats low = stats, high = stats;
  ForEachCounter([&](auto row) {
    if constexpr (row.kHasBracket) {
      low.*row.kRow.of = (this->*row.kRow.open).low;
      high.*row.kRow.of = (this->*row.kRow.open).high;
    }
  });
  if constexpr (std::is_member_object_pointer_v<decltype(kOf)>) {
    return Bracket<std::decay_t<decltype(low.*kOf)>>{low.*kOf, high.*kOf};
  } else {
    return Bracket<decltype((low.*kOf)())>{(low.*kOf)(), (high.*kOf)()};
  }
}

}  // namespace dlsim
