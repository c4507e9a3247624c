// SPDX-License-Identifier: Apache-2.0
// The readable report of a replay for a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Returns the lines that say what was read.
std::string DescribeTrace(const SourceFacts& facts);

// Returns the notes on it alone.
std::string NotesText(const SourceFacts& facts);

struct ReportOptions {
  uint64_t top = 5;                             // tensors in each list
  bool details = false;                         // sections of the runs
  std::vector<OptimizerGroup> optimizers = {};  // those of the replay
};

// Returns the report: what was read, one line per run, how interrupted runs differ, then, if asked
// for, the policies' parameters and a section for each run (report_run.h).
std::string FormatReport(const SourceFacts& facts, std::span<const SimulationRun> runs,
                         const ReportOptions& options);

}  // namespace dlsim::sim
