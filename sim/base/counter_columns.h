// SPDX-License-Identifier: Apache-2.0
// Where the counters of a tensor are written, and under which names.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "dlsim/tensor_stats.h"

namespace dlsim::sim {

// Empty = it is not written there.
struct CounterColumns {
  std::string_view counter;   // its name in kCounters
  const char* json = "";      // key among the counters
  const char* csv = "";       // column of a replay's
  const char* heat_map = "";  // key
  const char* report = "";    // title in the list of tensors ...
  int report_place = 0;       // ... and its place there
};

inline constexpr auto kCounterColumns = std::to_array<CounterColumns>({
    {.counter = "elements", .json = "elements", .csv = "elements"},
    {.counter = "zeros", .json = "zeros", .csv = "zeros"},
    {.counter = "nonfinite", .json = "nonfinite"},
    {.counter = "nan", .json = "nan", .csv = "nan"},
    {.counter = "inf", .json = "inf", .csv = "inf"},
    {.counter = "nonzero_finite", .heat_map = "nonzero", .report = "of nonzero", .report_place = 2},
    {.counter = "underflow", .json = "underflow", .csv = "underflow", .heat_map = "underflow"},
    {.counter = "subnormal",
     .json = "subnormal",
     .csv = "subnormal",
     .report = "subnormal",
     .report_place = 4},
    {.counter = "overflow",
     .json = "overflow",
     .csv = "overflow",
     .heat_map = "overflow",
     .report = "overflow",
     .report_place = 5},
    {.counter = "absmax", .csv = "absmax", .report = "absmax", .report_place = 6},
    {.counter = "sum_of_squares", .csv = "sumsq", .heat_map = "sum_of_squares"},
    {.counter = "error_sum_of_squares", .csv = "error_sumsq", .heat_map = "error_sum_of_squares"},
    {.counter = "underflow_sum_of_squares", .heat_map = "underflow_sum_of_squares"},
    {.counter = "underflow_fraction",
     .json = "underflow_fraction",
     .report = "underflow",
     .report_place = 1},
    {.counter = "energy_lost", .json = "energy_lost"},
});

// Those of a CounterAt.
template <class Counter>
struct ColumnsOf {
  static constexpr CounterColumns Find() {
    const auto found =
        std::ranges::find(kCounterColumns, Counter::kRow.name, &CounterColumns::counter);
    return found == kCounterColumns.end() ? CounterColumns{} : *found;
  }
  static constexpr CounterColumns kNames = Find();
  static constexpr bool kInJson = *kNames.json != 0, kInCsv = *kNames.csv != 0;
  static constexpr bool kInHeatMap = *kNames.heat_map != 0, kInReport = *kNames.report != 0;
};

// Calls visit(row, columns) with a CounterAt and its ColumnsOf for each row, in order.
template <class Visit>
void ForEachColumn(const Visit& visit) {
  ForEachCounter([&](auto row) { visit(row, ColumnsOf<decltype(row)>()); });
}

}  // namespace dlsim::sim
