// SPDX-License-Identifier: Apache-2.0
// The result of `dlsim tune`, for a terminal and as JSON ("dlsim.tune/1", docs/tune.md).
#pragma once

#include <cstddef>
#include <string>

#include "dlsim/sim/tune.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// What is minimized, in one paragraph.
inline constexpr const char* kTuneObjective =
    "mean loss of the recorded steps, where a step loses 1 if it is skipped or not finite, 0 if "
    "its "
    "loss scale is safe, else its harm, the mean over its tensors";

// Which policies may be recommended.
inline constexpr const char* kTuneEligibility =
    "policies under which the original software would raise an error and end the training are not "
    "recommended";

// Returns the report but for verdict and trace: what is recommended and how to configure it, with
// all the evidence if `details` are asked for; `top` tensors in each list.
std::string FormatTuneReport(const TuneResult& result, size_t top, bool details);

// The document, of what lives until it is told; `config`: empty without one.
TellRows RowsOf(const TuneResult& result, const TellRows& trace = {}, const TellRows& verdict = {},
                const TellRows& config = {});
void AddTuneKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
