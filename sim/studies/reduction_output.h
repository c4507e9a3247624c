// SPDX-License-Identifier: Apache-2.0
// What dlsim accumulate writes: sentences, report, JSON and CSV (docs/accumulation.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/gradient_source.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/studies/reduction_study.h"

namespace dlsim::sim {

// The answer: a line per format of less than 32 bits or level, one on noise, one on what was seen,
// and one on where the number of ranks comes from if a configuration says it.
std::vector<std::string> ReductionVerdict(const ReductionStudy& study);

// The verdict and tables for the terminal; lists show `top` tensors.
std::string FormatReductions(const SourceFacts& facts, const ReductionStudy& study, uint64_t top);

// The object of one run; its numbers are the figures of --expect.
Json JsonRun(const ReductionResult& result);

// Writes the document dlsim.accumulate/2. `options` describes the call; `expectations` may be null.
void WriteReductionJson(const Json& trace, const Json& options, const Json& expectations,
                        const ReductionStudy& study, OutputFile& out);

std::string ReductionCsvHeader();

// Returns a row for each reduction.
std::string ReductionCsvRows(const TensorAtStep& tensor, std::span<const Reduction> reductions);

}  // namespace dlsim::sim
