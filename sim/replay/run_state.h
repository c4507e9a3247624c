// SPDX-License-Identifier: Apache-2.0
// One simulation on its way through a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/replay/finite_test.h"
#include "sim/replay/shared_losses.h"

namespace dlsim::sim {

// What all runs share of a step.
struct SharedStep {
  const std::vector<bool>& noise;  // per tensor, and ...
  std::span<const size_t> places;  // ... its place in the result; see NoiseFinder
  SharedLosses& losses;
};

class RunState {
 public:
  // `conversion`: the same number for runs of the same conversion.
  RunState(ReplayRun run, size_t conversion, const ReplayOptions& options);

  const ReplayRun& run() const { return run_; }
  // What the summary says of tensors only TakeResult tells.
  const ReplayResult& result() const { return result_; }
  ReplayResult TakeResult();
  bool stopped() const { return result_.stopped_at.has_value(); }

  // Removes and returns the record of the last step, and forgets its events: for callers that keep
  // sums only.
  ReplayStep TakeStep();

  // True if Prepare needs the spreads of the step.
  bool looks_ahead() const { return run_.scaler.looks_ahead(); }

  // Begins a step: resumes if training was interrupted here, sets factors that depend on the
  // gradients, and returns what to measure. `spreads` is empty unless some run looks ahead.
  StepQuestion Prepare(int64_t step, const std::vector<StepTensor>& tensors,
                       const std::vector<GradientSpread>& spreads);

  // Advances by the measured step.
  void Advance(const JudgedStep& step, const SharedStep& shared, int64_t number);

 private:
  // A measured step with the optimizer group of each tensor, all 0 without groups.
  struct Measured {
    JudgedStep judged;
    std::vector<size_t> groups;
    const SharedStep& shared;
  };

  using IndexLists = std::vector<std::vector<size_t>>;

  bool Checks(const StepTensor& tensor) const;

  // Returns the checked tensors of each of `count` parts; parts[t] is that of a tensor, if below.
  IndexLists CheckedBy(const std::vector<size_t>& parts, size_t count,
                       const std::vector<StepTensor>& tensors) const;
  size_t UnitOf(const std::string& tensor);
  std::optional<DetailQuestion> Detail() const;
  std::vector<size_t> GroupsOf(const std::vector<StepTensor>& tensors) const;
  void JudgeAll(const Measured& step, ReplayStep& record) const;
  ScalerInput InputOf(const Measured& step, const ReplayStep& record, Reading reading) const;
  bool DecidesAlike(const Measured& step, const ReplayStep& record) const;
  ScalerDecision Next(const Measured& step, ReplayStep& record);
  void Skip(const ScalerDecision& decision, ReplayStep& record) const;
  void Count(const Measured& step, ReplayStep& record);
  StepHarm HarmOfStep(const Measured& step, Role role) const;
  void CountStep(const Measured& step, size_t t, ReplayStep& record);
  bool SkipsTensor(const Measured& step, size_t t, const ReplayStep& record) const;
  void CountTensor(const Measured& step, size_t t, const ReplayStep& record);
  void CountLosses(const Measured& step, const ReplayStep& record);
  void CountChannels(const Measured& step, size_t t, bool skipped, const ReplayStep& record,
                     ChannelHarm& harm) const;
  double SmallestScale() const;

  ReplayRun run_;
  size_t conversion_;
  const ReplayOptions& options_;
  LossScaler initial_;  // of new layers and gradients
  bool resumed_ = false;
  ReplayResult result_;
  LossList losses_;  // with TensorRecords::kHarm
  // The scalers of layers or gradients, if the rules say so; else empty.
  std::vector<LossScaler> units_;
  std::map<std::string, size_t> unit_index_;
  std::vector<size_t> unit_of_tensor_;  // of the current step
  std::vector<float> scale_of_tensor_;  // of the current step
};

}  // namespace dlsim::sim
