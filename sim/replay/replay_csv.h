// SPDX-License-Identifier: Apache-2.0
// The result of a replay as CSV: one row per step, run, micro-step and tensor, written as it goes.
#pragma once

#include <string>

#include "dlsim/sim/replay.h"
#include "sim/base/output_file.h"

namespace dlsim::sim {

// The first line, with its line end. Rows of a profile have one more column: whether all counters
// are exact.
std::string CsvHeader(const SourceFacts& facts);

// Writes the rows of one step.
void WriteCsvRows(const ObservedStep& step, OutputFile& out);

}  // namespace dlsim::sim
