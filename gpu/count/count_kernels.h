// SPDX-License-Identifier: Apache-2.0
// Launchers of the counting kernels, and what they need on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dlsim/gpu/stream.h"
#include "dlsim/histogram.h"
#include "gpu/base/piece.h"
#include "gpu/count/count_tables.h"
#include "gpu/count/window_plan.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

// Edges on the current device.
class CountEdges {
 public:
  explicit CountEdges(const HistogramEdges& edges);

  const DeviceEdges& view() const { return view_; }

 private:
  DeviceBuffer<uint32_t> bits_;
  DeviceBuffer<WindowPlan> plan_;
  DeviceBuffer<uint32_t> plan_bins_;
  DeviceEdges view_;
};

// Counts piece i into table table_of_piece[i], or that of Piece::tensor if it is null.
void LaunchCount(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                 const DeviceEdges& edges, const CountTables& tables, Stream stream);

// Whether the current device has the shared memory that edges with a plan are counted in.
bool WindowFits();

// LaunchCount for edges with a plan.
void LaunchCountWindow(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                       const DeviceEdges& edges, const CountTables& tables, Stream stream);

// Appends what the first `table_count` tables hold to rows, from *row_used on, and empties them.
struct CountRows {
  CountRow* rows = nullptr;
  uint64_t* row_used = nullptr;
};
void LaunchCompact(const CountTables& tables, uint32_t table_count, const CountRows& rows,
                   CountAnswer* answers, Stream stream);

// Adds the answer of a table to sums; `rows` are those of the answer.
void AddAnswer(const CountAnswer& answer, const CountRow* rows, uint32_t bin_count,
               HistogramSums& sums);

}  // namespace dlsim::gpu
