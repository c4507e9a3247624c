// SPDX-License-Identifier: Apache-2.0
// Reduces one tensor at one step in all ways, and compares with float64.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/studies/reduction_study.h"

namespace dlsim::sim {

TensorAtStep MeasureReductions(const RankTensor& tensor, int64_t step,
                               const std::vector<Reduction>& reductions,
                               const ReductionOptions& options);

}  // namespace dlsim::sim
