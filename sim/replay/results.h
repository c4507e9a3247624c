// SPDX-License-Identifier: Apache-2.0
// The results of a replay: the report for a terminal; JSON, schema "dlsim.replay/1", its figures,
// and CSV with one row per step, run, micro-step and tensor (docs/results.md); and the summaries
// that Cerebras' TensorFlow trainer logs of each gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "dlsim/trace.h"
#include "sim/base/expectation.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
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
// for, the policies' parameters and a section for each run: why
// steps were not finite, the warm-up, clipping, events and the worst tensors.
std::string FormatReport(const SourceFacts& facts, std::span<const SimulationRun> runs,
                         const ReportOptions& options);

// The longest row of skipped steps that no lower scale would have made finite.
struct HopelessRow {
  int64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;
  double first_scale = 0, last_scale = 0;  // used by its first step, and after its last
  std::string tensor;                      // to blame for the first
};

// Returns nothing if no such step was skipped.
std::optional<HopelessRow> LongestHopelessRow(const ReplayResult& result);

// What a layer of a model loses in a run: its tensors together.
struct LayerLoss {
  std::string name;
  uint64_t tensors = 0;     // without those that hold only rounding noise of float32
  HarmOverSteps harm = {};  // over its tensors: the mean of their means, and the worst of any step
  uint64_t overflow = 0;    // finite values that overflow, over all steps
  std::optional<int64_t> first_overflow_step = {};
};

// Returns the layers of these tensors, the worst first: by overflowing values, then by the worst
// harm. Repeated calls of a module in a step (`fc.call1`) count as one layer.
std::vector<LayerLoss> LayerLosses(std::span<const ReplayTensor> tensors);

// Returns a table for each run with the `top` worst layers at the scales that its policy used.
std::string FormatLayerLosses(std::span<const SimulationRun> runs, size_t top);

// The rows of a run's path; those of scales have no value if the policy refused its parameters.
// `stopped_at`: the step of the event that ended it.
void PathRows(const PathSummary& of, std::optional<int64_t> stopped_at, RowSink& row);

inline constexpr const char* kWorstEnergyLost = "largest energy_lost of one applied step";

// Returns the figures of the summary of a run.
std::vector<Figure> FiguresOf(const SimulationRun& run);

// What is written next to the runs.
struct ReplayRecord {
  TellRows trace, options, verdict;
  std::span<const ExpectationOutcome> expectations;
  std::span<const SimulationRun> runs;
};

// Writes the document step by step, one line each, without building it in memory.
void WriteReplayJson(const ReplayRecord& record, OutputFile& out);

// The first line, with its line end; with `configs`, the configuration of each run, the last column
// names it.
std::string CsvHeader(std::span<const std::string> configs = {});

// Writes the rows of one step.
void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out);

// Adds the tables of the keys and columns.
void AddReplayKeys(std::vector<KeyTable>& tables);

// Writes the document dlsim.summaries/1, with an object for every tensor of every recording.
// Denormal is 0 < magnitude < min_normal. `paths` are those of the trace. Throws Error if reading
// fails.
void WriteSummaries(const TraceReader& trace, std::span<const std::string> paths, float min_normal,
                    OutputFile& out);

void AddSummariesKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
