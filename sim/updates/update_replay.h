// SPDX-License-Identifier: Apache-2.0
// Replays the updates of a probe in several runs at once, and in float32: a step at a time, with
// memory for the followed elements of each run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/probe.h"
#include "sim/updates/tensor_update.h"
#include "sim/updates/update_run.h"

namespace dlsim::sim {

// A run whose weights end farther from float32's than this part of the way is warned of.
inline constexpr double kHarmfulDrift = 0.2;

// What a run did to one tensor. Distances are L2 norms over its followed elements.
struct TensorOutcome {
  UpdateCounts counts;
  std::optional<int64_t> first_lost;  // step of the first lost update
  // Distance from the float32 run over the way that this one went; nothing if it did not move.
  std::optional<double> drift;
  std::optional<double> progress;       // part of that way that the run went in its direction
  std::optional<double> second_bias;    // sum of the second moment over that in float32
  uint64_t nonfinite = 0;               // elements that are not finite, but are in float32
  std::optional<int64_t> harmed_since;  // step from which on it is harmed to the end

  bool harmed() const { return nonfinite > 0 || drift.value_or(0) > kHarmfulDrift; }
};

// What a run did to all tensors.
struct RunOutcome {
  UpdateRun run;
  std::vector<TensorOutcome> tensors;
  UpdateCounts counts;
  uint64_t nonfinite = 0;
  std::optional<int64_t> first_lost, harmed_since;
  size_t first_lost_tensor = 0;
  std::optional<double> drift, progress;  // means of the tensors that moved
  std::optional<double> second_bias;      // mean of the tensors, of their logarithms

  bool harmed() const { return nonfinite > 0 || drift.value_or(0) > kHarmfulDrift; }
};

class UpdateReplay {
 public:
  // `start`: the values before the first step. `place` is named in errors.
  UpdateReplay(const ProbeHead& head, const ProbeValues& start, std::span<const UpdateRun> runs,
               uint64_t seed, std::string place);

  // Throws InputError for an optimizer that cannot be replayed.
  void Take(const ProbeStep& step);

  // Forgets the states of tensors whose optimizer has none between two steps, since it is a new
  // one.
  void Renew(const ProbeValues& recorded);

  // Returns what the runs did, in their order, after the last step.
  std::vector<RunOutcome> Outcomes() const;

  // Returns how far the float32 run is from recorded values, as a drift over all tensors that the
  // training kept in float32; nothing if there are none that moved.
  std::optional<double> DistanceFrom(const ProbeValues& recorded) const;

  // The state of a tensor in a run; and in the float32 run of the same settings.
  const TensorState& StateOf(size_t run, size_t tensor) const;
  const TensorState& Float32Of(size_t run, size_t tensor) const;
  std::span<const float> StartOf(size_t tensor) const;
  std::span<const UpdateRun> runs() const { return runs_; }

 private:
  struct FollowedTensor {
    size_t first = 0, count = 0;  // in the values of a step
    uint64_t updates = 0;
    bool has_first = false;
  };
  // One run of one tensor, and what is noted step by step.
  struct Kept {
    TensorState state;
    std::optional<int64_t> first_lost, harmed_since;
    std::optional<double> drift;
    uint64_t nonfinite = 0;
  };

  void Begin(const ProbeValues& start);
  void BeginStates(const ProbeState& state);
  void TakeTensor(size_t tensor, const ProbeStep& step);
  void Note(size_t tensor, size_t run, int64_t step);
  void NoteRuns(int64_t step);
  const Kept& KeptOf(size_t tensor, size_t run) const { return kept_[tensor][run]; }
  TensorOutcome OutcomeOf(size_t tensor, size_t run) const;

  ProbeHead head_;
  std::string place_;
  uint64_t seed_;
  std::vector<UpdateRun> runs_;       // those asked for
  std::vector<UpdateRun> all_;        // and after them the float32 runs
  std::vector<size_t> reference_of_;  // of each of all_
  std::vector<FollowedTensor> tensors_;
  std::vector<float> start_;
  std::vector<std::vector<Kept>> kept_;               // by tensor and run
  std::vector<std::optional<int64_t>> harmed_since_;  // by run
};

}  // namespace dlsim::sim
