// SPDX-License-Identifier: Apache-2.0
// What a replay of updates says: which runs follow float32, and what fixes those that do not.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/probe.h"
#include "sim/updates/update_replay.h"

namespace dlsim::sim {

enum class UpdateVerdict : uint8_t {
  kSound,  // ends within kHarmfulDrift of the way
  kDrifts,
  kNotFinite,  // weights that are finite in float32 are not
};

constexpr auto EnumNames(UpdateVerdict) {
  return std::to_array<EnumName<UpdateVerdict>>({{UpdateVerdict::kSound, "sound"},
                                                 {UpdateVerdict::kDrifts, "drifts"},
                                                 {UpdateVerdict::kNotFinite, "not finite"}});
}

// A replayed probe.
struct UpdateStudy {
  std::string path;
  ProbeHead head;
  size_t steps = 0;
  int64_t first_step = 0, last_step = 0;
  uint64_t cut_bytes = 0;
  std::vector<std::string> optimizers;  // of the first step, each once
  OptimizerSettings trained;            // with what the first group began
  std::vector<RunOutcome> runs;         // the one that was asked for first
  size_t asked = 1;                     // how many of them the sentences are about
  std::optional<double> distance;       // of the float32 run from the last recorded values
  size_t compared = 0;                  // after how many updates these were recorded
  std::vector<std::string> limits;      // notes on what makes the replay less certain, each once
};

// Returns a note on what the replay of an optimizer computes otherwise than PyTorch; empty if there
// is nothing.
std::string LimitOf(const OptimizerSettings& settings, const ProbeHead& head);

UpdateVerdict VerdictOf(const RunOutcome& run);

// Returns what fixes a run: how the sound runs that were tried differ from it, the cheapest first;
// float32 weights and states if none of them is sound. A fix at least halves the drift. Empty if
// the run is sound.
std::vector<std::string> FixesOf(const UpdateStudy& study, const RunOutcome& run);

// Returns the sentences about the runs that were asked for, the verdict first, and notes on what
// makes them less certain.
std::vector<std::string> UpdateSentences(const UpdateStudy& study);

// Returns what was looked at, and what that leaves open.
std::vector<std::string> CoverageSentences(const UpdateStudy& study);

}  // namespace dlsim::sim
