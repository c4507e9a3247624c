// SPDX-License-Identifier: Apache-2.0
// Replays a recorded trace through number formats and loss-scaling policies: the main job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/loss_scaler.h"
#include "dlsim/measure_step.h"
#include "dlsim/trace.h"

namespace dlsim {

// One simulation: a conversion and a policy, from its first step.
struct ReplayRun {
  std::string format;  // name to print
  std::string policy;  // name to print
  Conversion conversion;
  StackRules rules;
  LossScaler scaler;
};

// Which gradients decide whether a step is finite.
enum class Checked : uint8_t { kParameterGradients, kAllGradients };

// Why a step was not finite.
enum class Cause : uint8_t {
  kNone,          // it was finite
  kInput,         // the recorded gradient holds infinity or NaN
  kOverflow,      // a finite gradient, scaled, does not fit the format
  kNorm,          // every element is finite; the float32 norm is not
  kAccumulation,  // every micro-step is finite; their float32 sum is not
};

// Returns "input", "overflow", "norm", "accumulation", or "" for kNone.
const char* CauseName(Cause cause);

// What happened at one step of a run.
struct ReplayStep {
  int64_t step = 0;
  double scale = 0;       // used by this step
  double next_scale = 0;  // after the policy's update
  bool finite = true;     // by the policy's test
  bool skipped = false;   // the optimizer did not step
  double grad_norm = 0;   // float64 L2 norm of the unscaled, quantised parameter gradients
  Cause cause = Cause::kNone;
  std::string cause_tensor;  // the tensor to blame; empty if none in particular
  TensorStats gradients;     // over parameter gradients
  TensorStats activations;   // over activation gradients
};

// One tensor over all steps of a run.
struct ReplayTensor {
  std::string name;
  Role role = Role::kGrad;
  TensorStats stats;
  // Largest energy lost in one applied step: over a run the largest step would hide the others.
  double worst_step_energy_lost = 0;
  std::optional<int64_t> first_overflow_step = std::nullopt;
};

struct ReplayResult {
  std::vector<ReplayStep> steps;
  std::vector<ReplayTensor> tensors;  // in file order of their first appearance
  std::vector<ScalerEvent> events;    // `step` is the recorded step number
  std::optional<int64_t> stopped_at;  // step of the fatal event that ended the run
};

struct ReplaySummary {
  uint64_t steps = 0;
  uint64_t skipped_steps = 0;
  uint64_t nonfinite_steps = 0;  // a policy that never skips applies these
  std::optional<int64_t> first_applied_step;
  double final_scale = 0;  // after the last step
  double min_scale = 0;    // among the scales used
  double max_scale = 0;
  double worst_step_energy_lost = 0;  // among applied steps, over parameter gradients
  TensorStats gradients;
  TensorStats activations;
};

ReplaySummary Summarize(const ReplayResult& result);

// What an observer sees of one step: the measurement, and what each run made of it.
struct ObservedStep {
  size_t index = 0;  // of the step in the trace
  const TraceStep& trace_step;
  const StepMeasurement& measurement;
  struct Run {
    const ReplayRun& run;                      // its scaler has already advanced
    const std::vector<TensorAnswer>& answers;  // per tensor
    const ReplayStep& record;
  };
  std::vector<Run> runs;
};

struct ReplayOptions {
  StepOptions step;
  Checked checked = Checked::kParameterGradients;
  OnFatal on_fatal = OnFatal::kStop;
  std::function<void(const ObservedStep&)> observer;  // called after each step; may be empty
};

// Runs all simulations in one pass over the trace; one result per run, in order. Runs with the same
// conversion and scale at a step share its measurement. Throws Error for a bad trace.
std::vector<ReplayResult> Replay(const TraceReader& trace, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options);

// Returns how many steps a policy would skip before its first applied step if every step were like
// this one; nothing if it would not end within 10,000 steps. `absmax` is the step's largest finite
// magnitude.
std::optional<int64_t> ExpectedWarmUpSkips(const ReplayRun& run, float absmax);

}  // namespace dlsim
