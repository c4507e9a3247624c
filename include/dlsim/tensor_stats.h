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

// Counts are exact. So are the sums of a tensor, rounded once, so that every machine, thread count
// and device gives the same digits; sums over tensors and steps are float64 sums of these, in
// order.
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
  // Of the outputs after unscaling; may be inf or NaN. Only Measure finds it: tables do not tell.
  double quantized_sum_of_squares = 0;

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

// The results that show a counter.
enum class Shown : uint8_t { kNot, kJson, kCsv, kBoth };

// What there is to know of one counter.
template <class Of>
struct CounterRow {
  const char* name;
  Of of;  // data member, or function of others: std::invoke(of, stats) is the value
  Shown shown = Shown::kNot;
  const char* meaning = "";
  const char* column = name;  // in CSV
};
template <class Of, class... Rest>
CounterRow(const char*, Of, Rest...) -> CounterRow<Of>;

// In the order of all that lists counters.
inline constexpr std::tuple kCounters = {
    CounterRow{"elements", &TensorStats::elements, Shown::kBoth, "values, over all micro-steps"},
    CounterRow{"zeros", &TensorStats::zeros, Shown::kBoth, "recorded as zero, of both signs"},
    CounterRow{"nonfinite", &TensorStats::nonfinite, Shown::kJson, "recorded as infinite or NaN"},
    CounterRow{"nan", &TensorStats::nan, Shown::kBoth, "recorded as NaN"},
    CounterRow{"inf", &TensorStats::inf, Shown::kBoth, "recorded as infinite"},
    CounterRow{"nonzero_finite", &TensorStats::nonzero_finite},
    CounterRow{"underflow", &TensorStats::underflow, Shown::kBoth,
               "nonzero finite values that become zero"},
    CounterRow{"subnormal", &TensorStats::subnormal, Shown::kBoth, "values that become subnormal"},
    CounterRow{"overflow", &TensorStats::overflow, Shown::kBoth, "finite values that overflow"},
    CounterRow{"nonfinite_outputs", &TensorStats::nonfinite_outputs},
    CounterRow{"absmax", &TensorStats::absmax, Shown::kCsv, "largest finite recorded magnitude"},
    CounterRow{"sum_of_squares", &TensorStats::sum_of_squares, Shown::kCsv,
               "sum of squares of the finite recorded values", "sumsq"},
    CounterRow{"error_sum_of_squares", &TensorStats::error_sum_of_squares, Shown::kCsv,
               "sum of squared rounding errors", "error_sumsq"},
    CounterRow{"underflow_sum_of_squares", &TensorStats::underflow_sum_of_squares},
    CounterRow{"quantized_sum_of_squares", &TensorStats::quantized_sum_of_squares},
    CounterRow{"underflow_fraction", &TensorStats::underflow_fraction, Shown::kJson,
               "share of the nonzero finite values that becomes zero"},
    CounterRow{"energy_lost", &TensorStats::energy_lost, Shown::kJson,
               "share of the sum of squares that becomes zero"},
};

// A row as a type: loops over rows are unrolled, and cost what a list by hand would.
template <size_t kIndex>
struct CounterAt {
  static constexpr auto kRow = std::get<kIndex>(kCounters);
  static constexpr bool kIsMember = std::is_member_object_pointer_v<decltype(kRow.of)>;
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
      if constexpr (std::is_same_v<decltype(into), float&>) {  // a magnitude
        into = from > into ? from : into;
      } else {
        into += from;
      }
    }
  });
}

}  // namespace dlsim
