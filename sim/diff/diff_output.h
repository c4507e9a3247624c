// SPDX-License-Identifier: Apache-2.0
// What a comparison of two runs says: in a terminal, as JSON (schema "dlsim.diff/1") and CSV
// (docs/diff.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/diff/diff.h"
#include "sim/diff/diff_run.h"

namespace dlsim::sim {

// What was compared, and what came of it.
struct Diff {
  const DiffRuns& runs;
  const AlignedSteps& aligned;
  const DiffResult& result;
};

// The figures of the whole, which expectations may name; null where there is nothing to measure.
Json JsonFigures(const DiffResult& result, uint64_t unmatched_steps);
Json JsonFigures(const Diff& diff);

// The answer in one to three sentences.
std::vector<std::string> DiffLines(const Diff& diff);

struct DiffReportOptions {
  uint64_t top = 20;      // tensors in the table
  bool by_layer = false;  // a table of the layers, in file order
  bool details = false;   // a table of the steps
};

// Returns the report, in lines of at most 80 columns but for long names of files.
std::string FormatDiff(const Diff& diff, const DiffReportOptions& options);

// `expectations`: null if none were given.
void WriteDiffJson(const Diff& diff, const Json& options, const Json& expectations,
                   OutputFile& out);

std::string DiffCsvHeader();
std::string DiffCsvRows(const ComparedStep& step);

}  // namespace dlsim::sim
