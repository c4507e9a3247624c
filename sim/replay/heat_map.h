// SPDX-License-Identifier: Apache-2.0
// What a run lost, tensor by tensor, over bins of neighboring steps: memory does not grow with the
// number of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// Steps that share a column of the map.
struct StepBin {
  int64_t first_step = 0, last_step = 0;  // recorded numbers
  uint64_t steps = 0;
  uint64_t skipped_steps = 0;
};

struct HeatMapRow {
  std::string name;
  Role role = Role::kGrad;
  std::vector<TensorStats> cells;  // per bin, over its steps and micro-steps
};

// The map of one run. Bins hold as many steps as their neighbors, or one more.
class HeatMap {
 public:
  // `steps` are those of the source; at most `max_bins` bins, at least one.
  explicit HeatMap(size_t steps = 1, uint64_t max_bins = 1);

  // Adds the step at position `index` of the source; steps come in order.
  void Add(size_t index, const ReplayStep& record, const Step& step, const StepAnswer& answers);

  // Bins that have steps: a run that stopped early has fewer.
  const std::vector<StepBin>& bins() const { return bins_; }
  const std::vector<HeatMapRow>& rows() const { return rows_; }  // in order of first appearance

 private:
  HeatMapRow& RowOf(const TensorInfo& tensor, size_t position);

  size_t steps_, bin_count_;
  std::vector<StepBin> bins_;
  std::vector<HeatMapRow> rows_;
  std::map<std::pair<std::string, Role>, size_t> row_of_;
};

}  // namespace dlsim::sim
