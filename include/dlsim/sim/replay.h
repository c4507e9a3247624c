// SPDX-License-Identifier: Apache-2.0
// Replays a recorded trace through number formats and loss-scaling policies: the main job.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "dlsim/measure_step.h"
#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/step.h"
#include "dlsim/tensor_stats.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// Gradient clipping, as the stacks do it after (or, by mistake, before) unscaling. At most one of
// the two limits is set.
struct Clipping {
  std::optional<double> max_norm;   // of the L2 norm over all parameter gradients
  std::optional<double> max_value;  // of each element's magnitude
  ClipRule rule = ClipRule::kTorch;
  ClipDomain domain = ClipDomain::kUnscaled;

  bool enabled() const { return max_norm || max_value; }
};

// Returns what the gradients are multiplied with. Sources: torch.nn.utils.clip_grad_norm_ (a number
// divided by a tensor is the number times the tensor's reciprocal), tf.clip_by_global_norm,
// FP16Optimizer of fairseq.
inline float ClipCoefficient(ClipRule rule, float max_norm, float norm) {
  if (rule == ClipRule::kTorch) {
    const float coefficient = max_norm * (1.0f / (norm + 1e-6f));
    return coefficient > 1.0f ? 1.0f : coefficient;  // keeps NaN, as torch.clamp does
  }
  if (rule == ClipRule::kFairseq) return norm > max_norm ? max_norm / norm : 1.0f;
  const float finite = max_norm * std::fmin(1.0f / norm, 1.0f / max_norm);
  return finite + (norm - norm);
}

// Returns whether a rule's coefficient changes gradients on purpose: TensorFlow's is often one
// rounding below 1 for norms within the limit.
inline bool Clips(ClipRule rule, float max_norm, float norm) {
  if (rule == ClipRule::kTensorFlow) return norm > max_norm;
  return ClipCoefficient(rule, max_norm, norm) < 1.0f;
}

// Training is interrupted before a step and goes on from a checkpoint.
struct Resume {
  int64_t at_step = 0;  // recorded number; the first step from this on
  Kept kept = Kept::kAll;
};

// Which tensors a run's result holds, which takes memory where there are very many of them: all,
// only what ReplaySummary::tensor_harm needs, none. Channels and the forward pass are measured only
// with kKept.
enum class TensorRecords : uint8_t { kKept, kHarm, kDropped };

// One simulation: a conversion and a policy, from its first step.
struct ReplayRun {
  std::string format;  // name to print
  std::string policy;  // name to print
  Conversion conversion;
  StackRules rules;
  LossScaler scaler;                       // each layer or gradient has a copy if the rules say so
  Clipping clipping = {};                  // of the parameter gradients
  std::optional<LossScaler> initial = {};  // as training began, if `scaler` is from a checkpoint
  std::optional<Resume> resume = {};
  TensorRecords tensor_records = TensorRecords::kKept;
};

// Returns the run of a policy as its stack has it, with KEY=VALUE settings for its parameters:
//   const std::string paths[] = {"runs/mlp"};
//   const TraceReader trace = TraceReader::Open(paths, {});
//   const auto results = Replay(TraceSteps(trace),
//                               {MakeRun("cb16", "cerebras-2.10"), MakeRun("fp16", "torch")});
// Throws Error (exit code 2) for unknown names, and PolicyRefusal.
ReplayRun MakeRun(std::string_view format, std::string_view policy,
                  std::span<const std::string> settings = {});

// The same for a policy that is configured already, and a conversion whose format is filled in.
ReplayRun MakeRun(const NamedFormat& format, const PolicyInfo& policy, ConfiguredScaler configured,
                  Conversion conversion = {});

// The parameters of one optimizer: the gradients whose name matches a pattern (fnmatch) and none of
// an earlier group's. All optimizers share the loss scale.
struct OptimizerGroup {
  std::string name;
  std::string tensors;
};

// Which gradients decide whether a step is finite.
enum class Checked : uint8_t { kParameterGradients, kAllGradients };

constexpr auto EnumNames(Checked) {
  return std::to_array<EnumName<Checked>>(
      {{Checked::kParameterGradients, "grad"}, {Checked::kAllGradients, "all"}});
}

// Why a step was not finite.
enum class Cause : uint8_t {
  kNone,          // it was finite
  kInput,         // the recorded gradient holds infinity or NaN
  kOverflow,      // a finite gradient, scaled, does not fit the format
  kNorm,          // every element is finite; the float32 norm is not
  kAccumulation,  // every micro-step is finite; their float32 sum is not
  kSum,           // every element is finite; a tensor's float32 sum is not
  kUnscaling,     // the scaled gradient is finite; dividing it by the scale is not
};

// kNone has no name.
constexpr auto EnumNames(Cause) {
  return std::to_array<EnumName<Cause>>({{Cause::kInput, "input"},
                                         {Cause::kOverflow, "overflow"},
                                         {Cause::kNorm, "norm"},
                                         {Cause::kAccumulation, "accumulation"},
                                         {Cause::kSum, "sum"},
                                         {Cause::kUnscaling, "unscaling"}});
}

// What one of several optimizers did at a step.
struct OptimizerStep {
  bool has_gradients = false;  // in this step; else it neither steps nor skips
  bool finite = true;          // its own gradients, by the policy's test
  bool skipped = false;
  std::optional<double> grad_norm;       // see ReplayStep
  std::optional<double> converted_norm;  // if clipping by norm
  std::optional<float> clip_coefficient;
};

// What tensors lose, each of its own: relative squared errors, over the tensors of one role that
// are neither zero nor mere rounding noise of float32.
struct StepHarm {
  double mean = 0, worst = 0;
  std::string worst_tensor;  // empty without tensors
};

// What a tensor loses, or the mean over tensors, over steps.
struct HarmOverSteps {
  double sum = 0, worst = 0;
  uint64_t steps = 0;

  void Add(double harm) {
    sum += harm;
    worst = harm > worst ? harm : worst;
    ++steps;
  }
  double mean() const { return steps == 0 ? 0 : sum / static_cast<double>(steps); }
};

// What the channels of a tensor lose, over steps; see TensorTable::channels.
struct ChannelHarm {
  uint64_t channels = 0;    // the most channels that are not zero at one step; 0 = not known
  HarmOverSteps mean = {};  // over the channels
  double worst = 0;         // of a channel at a step
};

// The loss scales that were used.
struct ScaleRange {
  double min = 0, max = 0, final = 0;
};

// One tensor over all steps of a run.
struct ReplayTensor {
  std::string name;
  Role role = Role::kGrad;
  TensorStats stats = {};
  // Largest energy lost in one applied step: over a run the largest step would hide the others.
  double worst_step_energy_lost = 0;
  HarmOverSteps harm = {};     // over the applied steps in which it is not zero
  ChannelHarm channels = {};   // over the same, as far as they are known
  uint64_t nonzero_steps = 0;  // those, and the skipped ones ...
  uint64_t noise_steps = 0;    // ... and of all these where it is but rounding noise of float32

  bool noise() const { return 2 * noise_steps > nonzero_steps; }
  std::optional<int64_t> first_overflow_step = std::nullopt;
  std::optional<ScaleRange> scales = std::nullopt;  // if its scale is not the model's
};

// The forward pass of a run at scale 1: no loss scale moves it, and all steps count, those too that
// are skipped later. Its tensors are kept apart from gradients, so that nothing sums them together;
// they have no harm, no noise and no scales.
struct ForwardPass {
  TensorStats outputs, values;        // of the roles act and value
  std::vector<ReplayTensor> tensors;  // in file order of their first appearance
};

// A run's path at one step.
struct PathStep {
  int64_t step = 0;
  double scale = 0;       // used by this step; the smallest if layers or gradients have their own
  double next_scale = 0;  // after the policy's update
  bool finite = true;     // by the policy's test
  bool skipped = false;   // no optimizer with gradients stepped
  bool lower_scale_helps = true;  // false: not finite, and not at any lower scale either
};

// What happened at one step of a run.
struct ReplayStep : PathStep {
  Cause cause = Cause::kNone;
  std::string cause_tensor;  // the tensor to blame; empty if none in particular
  // L2 norm of the parameter gradients as recorded. Nothing if the sums over micro-steps are not
  // known, as in a profile that was recorded with them.
  std::optional<double> grad_norm;
  std::optional<double> converted_norm;      // the same after quantizing, if clipping by norm
  std::optional<float> clip_coefficient;     // the smallest, if clipping by norm and applied
  std::optional<uint64_t> clipped_elements;  // if clipping by value and applied ...
  uint64_t clippable_elements = 0;           // ... out of this number
  bool clipped = false;                      // some gradient was reduced
  std::vector<OptimizerStep> optimizers;     // per group of ReplayOptions::optimizers
  TensorStats gradients;                     // over parameter gradients
  TensorStats activations;                   // over activation gradients
  StepHarm harm, activation_harm;            // of parameter and of activation gradients
};

// A run's path in short.
struct PathSummary {
  uint64_t steps = 0;
  uint64_t skipped_steps = 0;
  uint64_t longest_skip_run = 0;  // steps skipped in a row
  uint64_t nonfinite_steps = 0;   // a policy that never skips applies these
  uint64_t hopeless_steps = 0;    // those that no lower scale would make finite
  std::optional<int64_t> first_applied_step;
  double final_scale = 0;  // after the last step
  double min_scale = 0;    // among the scales used
  double max_scale = 0;
  double worst_step_energy_lost = 0;  // among applied steps, over parameter gradients
  uint64_t skip_run = 0;              // steps skipped in a row at the end

  // `energy_lost`: over parameter gradients.
  void Add(const PathStep& step, double energy_lost);
};

struct ReplaySummary : PathSummary {
  uint64_t clipped_steps = 0;       // steps with some reduced gradient
  uint64_t clipped_elements = 0;    // by value, in applied steps ...
  uint64_t clippable_elements = 0;  // ... out of this number
  TensorStats gradients;
  TensorStats activations;
  HarmOverSteps harm, activation_harm;  // of the means of applied steps
  // Over the gradients that are neither zero nor noise: of what each loses on average, and the most
  // that one loses at a step. Not with TensorRecords::kDropped.
  HarmOverSteps tensor_harm;

  void Add(const ReplayStep& step);
};

struct ReplayResult {
  std::vector<ReplayStep> steps;
  ReplaySummary summary;              // of the steps
  std::vector<ReplayTensor> tensors;  // gradients, in file order of their first appearance
  ForwardPass forward;
  std::vector<ScalerEvent> events;    // `step` is the recorded step number
  std::optional<int64_t> stopped_at;  // step of the fatal event that ended the run

  // Why the run ended: a profile does not tell what it asked for. It is the last event, too.
  std::optional<std::string> unanswered;
};

// What an observer sees of one step, and what each run made of it.
struct ObservedStep {
  size_t index = 0;  // of the effective step
  const Step& step;
  struct Run {
    const ReplayRun& run;  // its scaler has already advanced
    std::shared_ptr<const StepAnswer> answers;
    const ReplayStep& record;
    size_t index;                               // of the run, in the order of the call
    std::shared_ptr<const StepAnswer> forward;  // in its conversion; null: nobody asked
  };
  std::vector<Run> runs;
};

struct ReplayOptions {
  StepOptions step;
  Checked checked = Checked::kParameterGradients;
  OnFatal on_fatal = OnFatal::kStop;
  std::vector<OptimizerGroup> optimizers;  // empty: one optimizer for all; see ReplayStep
  std::function<void(const ObservedStep&)> observer;  // called after each step; may be empty
};

// Runs all simulations in one pass over the steps; one result per run, in order. Runs with the same
// conversion and scale at a step share its measurement. Throws Error for a bad file.
std::vector<ReplayResult> Replay(const StepSource& source, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options = {});

}  // namespace dlsim::sim
