// SPDX-License-Identifier: Apache-2.0
// What each step of a trace does at each loss scale. Of a policy that only learns whether a step
// was finite, this table knows the whole run without any gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dlsim/sim/replay.h"
#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// Where gradients come from: a trace or a profile, replayed.
struct TuneSource {
  std::function<std::vector<ReplayResult>(std::vector<ReplayRun>)> replay;
  size_t step_count = 0;
  std::vector<float> ladder;  // the only scales that are exact, ascending; empty: all are
};

// What a step loses: nothing as long as its harm (docs/numerics.md) stays below the threshold, else
// the mean over tensors of what each loses of its own energy, the larger of parameter and
// activation gradients.
double LossOf(const ReplayStep& step, const Conversion& conversion);

// One loss scale, per step.
struct ScaleColumn {
  std::vector<double> lost;     // LossOf of each step, whether finite or not
  std::vector<uint8_t> finite;  // by the finite test
  bool exact = true;            // measured at this scale; else `lost` is that of a higher scale
};

class ScaleTable {
 public:
  // `prototype` says format and rules; its scaler is not used.
  ScaleTable(ReplayRun prototype, Checked checked, size_t step_count)
      : prototype_(std::move(prototype)), checked_(checked), step_count_(step_count) {}

  // Returns what is known of a scale. Without a measurement that is a bound: whether steps are
  // finite follows from their limits, and a step loses at least what it loses at the next higher
  // scale measured. Never null once a column was measured.
  const ScaleColumn* Find(float scale) const;

  bool Measured(float scale) const { return columns_.contains(scale); }
  size_t step_count() const { return step_count_; }
  const std::vector<StepFacts>& facts() const { return facts_; }
  const ReplayRun& prototype() const { return prototype_; }
  std::vector<float> MeasuredScales() const;  // ascending

  // Takes over a static replay at a scale.
  void Add(float scale, const ReplayResult& result);

  // Takes over what was measured otherwise.
  void Add(float scale, ScaleColumn column);

  // Adds what one scale shows of a step; the first scale decides number and magnitude.
  void Note(size_t step, const StepFacts& fact);

  Checked checked() const { return checked_; }

  // Computes the limits; after Add, before Find.
  void FindLimits();

 private:
  ReplayRun prototype_;
  Checked checked_;
  size_t step_count_;
  std::vector<StepFacts> facts_;
  std::unordered_map<float, ScaleColumn> columns_;
  mutable std::unordered_map<float, ScaleColumn> bounds_;
};

// Scales to be measured for a table.
struct ColumnRequest {
  ScaleTable* table = nullptr;
  std::vector<float> scales;
};

// Measures them in as few passes as memory allows. Scales off the source's ladder are left out.
void MeasureColumns(const TuneSource& source, std::span<const ColumnRequest> requests);

}  // namespace dlsim::sim
