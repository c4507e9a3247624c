// SPDX-License-Identifier: Apache-2.0
// Settings of loss scalers that serve recorded gradients, and what supports them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"

namespace dlsim::sim {

// A policy as a training has it today.
struct CurrentPolicy {
  std::string label;  // such as the file that says so
  std::string policy;
  std::vector<std::string> settings;  // KEY=VALUE
};

struct TuneRequest : AdviceRequest {
  std::string policy;                      // empty: PyTorch's in fp16, Cerebras' in other formats
  std::vector<std::string> fp16_policies;  // tuned as well where there is a format for them
  std::optional<CurrentPolicy> current;    // compared, with what to change
};

// The tuned parameters; those that a policy does not have are ignored.
struct ScaleParameters {
  double init = 1;
  double min = 0;
  double max = 0;
  int64_t interval = 0;
  int64_t hysteresis = 1;

  friend bool operator==(const ScaleParameters&, const ScaleParameters&) = default;
};

// What a policy comes to.
struct PolicyScore {
  // Mean over steps of what the step loses: all if it is skipped or not finite, nothing within its
  // window, else the mean over tensors of what each loses of its own energy. Steps after a fatal
  // error are lost.
  double mean_loss = 1;
  uint64_t skipped = 0;
  uint64_t first_skips = 0;  // steps skipped before the first applied one
  uint64_t events = 0;       // steps at which the original software raises an error
  double final_scale = 0;
  bool grew = false;  // the scale was raised at some step

  // False if the original software raises an error, which ends the training.
  bool eligible() const { return events == 0; }
};

// A policy, and what it comes to.
struct ComparedPolicy {
  std::string label, policy;          // the first for people
  std::vector<NamedValue> named;      // its parameters, under the names of its stack
  std::string refusal;                // why it does not run; else empty
  PolicyScore score;                  // if it runs
  std::vector<ReplayTensor> tensors;  // gradients, under what is recommended
};

// The parameters for one policy.
struct PolicyChoice : ComparedPolicy {
  ScaleParameters parameters;
  std::optional<ConfiguredScaler> scaler;  // that has them; nothing if the policy refuses all
  bool optimal = false;                    // as good as the best power of two of each step
};

// A parameter of the current policy that the recommendation changes.
struct ParameterChange {
  NamedValue from, to;
};

// What is said of a format, and the settings that follow.
struct FormatTuning : FormatAdvice {
  std::string reason;
  std::vector<PolicyChoice> choices;  // the policy asked for, then others
  double fixed_scale = 1;             // the scale of the verdict, or the safe one of most steps ...
  ComparedPolicy fixed;               // ... if it never changes; steps that skip are not finite
  double least_loss = 0;              // at the best power of two of each step
  std::vector<ComparedPolicy> comparisons;  // no scaling, the stacks' defaults, the current policy
  std::vector<ParameterChange> changes;     // of the current policy, if it is of the same stack
  std::vector<std::string> notes;
};

struct TuneResult {
  std::vector<FormatTuning> formats;
  bool compares_current = false;  // the last comparison of each format is the current policy
};

// Tunes for the formats of the request, from the advice on them: AdviseOn(source, request, options)
// says what it is. Throws Error for unknown names, and for bad files.
TuneResult Tune(const StepSource& source, const TuneRequest& request, const Advice& advice,
                const ReplayOptions& options = {});

}  // namespace dlsim::sim
