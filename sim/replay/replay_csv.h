// SPDX-License-Identifier: Apache-2.0
// The result of a replay as CSV: one row per step, run, micro-step and tensor, written as it goes.
#pragma once

#include <span>
#include <string>

#include "dlsim/sim/replay.h"
#include "sim/base/output_file.h"

namespace dlsim::sim {

// The first line, with its line end. Rows of a profile have one more column: whether all counters
// are exact; with `configs`, the configuration of each run, the last column names it.
std::string CsvHeader(std::span<const std::string> configs = {});

// Writes the rows of one step.
void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out);

}  // namespace dlsim::sim
