// SPDX-License-Identifier: Apache-2.0
// The ways to sum that a study compares: precision levels, and accumulators of the user's choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/accumulate.h"
#include "dlsim/codec.h"
#include "src/sums/precision_level.h"

namespace dlsim::sim {

// What the user asks for; names as in dlsim formats, or fp32.
struct SumRunsRequest {
  std::vector<std::string> formats;       // of inputs
  std::vector<PrecisionOptLevel> levels;  // all of them if there are no accumulators either
  std::vector<std::string> accumulators;  // of partial sums
  std::vector<uint64_t> chunks;           // chunk lengths
  std::optional<std::string> combiner;    // of sums of partial sums, with accumulators; fp32
  std::optional<std::string> products;    // what products are rounded to; exact without it
  Conversion conversion;                  // rounding, overflow and subnormals of all sums
};

// One way to sum.
struct SumRun {
  std::string name;                           // "level 1 cb16", "bf16 chunk 64"
  std::optional<PrecisionOptLevel> level;     // or else `options` as they are
  std::string format, accumulator, combiner;  // names; of a level only the format
  uint64_t chunk_length = kOneChunk;          // terms of a partial sum
  LevelParameters parameters;                 // of a level
  AccumulationOptions options;                // without a level
};

// Returns the runs, levels first. Throws UsageError.
std::vector<SumRun> MakeSumRuns(const SumRunsRequest& request);

// Returns how a run sums in a kind of operation.
AccumulationOptions OptionsOf(const SumRun& run, Operation operation, const RandomStream& random);

// Returns the number of a level.
int NumberOf(PrecisionOptLevel level);

}  // namespace dlsim::sim
