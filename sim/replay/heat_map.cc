// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/heat_map.h"

#include <algorithm>

#include "src/base/check.h"

namespace dlsim::sim {

HeatMap::HeatMap(size_t steps, uint64_t max_bins)
    : steps_(steps), bin_count_(static_cast<size_t>(std::min<uint64_t>(steps, max_bins))) {
  DLSIM_CHECK(max_bins > 0);
}

// Nearly every step has the tensors of the one before, at the same positions.
HeatMapRow& HeatMap::RowOf(const TensorInfo& tensor, size_t position) {
  if (position < rows_.size() && rows_[position].name == tensor.name &&
      rows_[position].role == tensor.role) {
    return rows_[position];
  }
  const auto [found, added] = row_of_.try_emplace({tensor.name, tensor.role}, rows_.size());
  if (added) rows_.push_back({tensor.name, tensor.role, std::vector<TensorStats>(bin_count_)});
  return rows_[found->second];
}

void HeatMap::Add(size_t index, const ReplayStep& record, const Step& step,
                  const StepAnswer& answers) {
  const size_t bin = index * bin_count_ / steps_;
  DLSIM_CHECK(bin < bin_count_ && bin <= bins_.size());
  if (bin == bins_.size()) bins_.push_back({record.step, record.step, 0, 0});
  StepBin& column = bins_[bin];
  column.last_step = record.step;
  ++column.steps;
  column.skipped_steps += record.skipped;
  for (size_t t = 0; t < answers.size(); ++t) {
    RowOf(step.gradients()[t], t).cells[bin].Merge(answers[t].total);
  }
}

}  // namespace dlsim::sim
