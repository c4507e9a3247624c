// SPDX-License-Identifier: Apache-2.0
// What dlsim accumulate writes: its report, JSON and CSV (docs/accumulation.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/gradient_source.h"
#include "dlsim/trace.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/studies/sum_study.h"

namespace dlsim::sim {

// Returns the tables for the terminal; lists show `top` tensors.
std::string FormatSumReport(const SourceFacts& facts, std::span<const SumRun> runs,
                            std::span<const SumResult> results, uint64_t top);

// Writes the document dlsim.accumulate/1. `options` describes the call.
void WriteSumJson(const SourceFacts& facts, std::span<const std::string> paths, const Json& options,
                  std::span<const SumRun> runs, std::span<const SumResult> results,
                  OutputFile& out);

// Returns the header line of the CSV file.
std::string SumCsvHeader();

// Writes one row per run for one item.
void WriteSumCsvRows(const SumItem& item, std::span<const SumRun> runs,
                     std::span<const SumOutcome> outcomes, OutputFile& out);

}  // namespace dlsim::sim
