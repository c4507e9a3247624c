// SPDX-License-Identifier: Apache-2.0
#include "sim/app/training_options.h"

#include <algorithm>
#include <utility>

#include "dlsim/error.h"
#include "sim/app/help_format.h"
#include "sim/app/typed_options.h"
#include "sim/base/number.h"

namespace dlsim::sim {
namespace {

OptimizerGroup ParseOptimizer(const std::string& text, const std::vector<OptimizerGroup>& earlier) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    throw UsageError("--optimizer", "not an optimizer", "NAME=GLOB", Quoted(text));
  }
  OptimizerGroup group = {text.substr(0, equals), text.substr(equals + 1)};
  const auto same = [&](const OptimizerGroup& other) { return other.name == group.name; };
  if (std::any_of(earlier.begin(), earlier.end(), same)) {
    throw UsageError("--optimizer", "name " + Quoted(group.name) + " is given twice");
  }
  return group;
}

void AddClippingOptions(CLI::App& command, TrainingOptions& options, SimulationRequest& request) {
  command
      .add_option("--max-gradient-norm", options.max_gradient_norm,
                  "Clip the parameter gradients to this L2 norm")
      ->option_text("X");
  command
      .add_option("--max-gradient-value", options.max_gradient_value,
                  "Clip each parameter gradient to this magnitude")
      ->option_text("X");
  AddChoice<ClipRule>(
      command, "--clip-rule", request.clip_rule, "RULE",
      "Coefficient of clipping by norm: torch, fairseq or tf (default: the stack's own)");
  AddChoice<ClipDomain>(command, "--clip-at", request.clipping.domain, "RULE",
                        "Clip after unscaling (default), or before: emulates a common bug");
}

}  // namespace

void AddTrainingOptions(CLI::App& command, TrainingOptions& options, SimulationRequest& request) {
  StartGroup(command, kEmulationGroup);
  AddClippingOptions(command, options, request);
  command
      .add_option("--grad-accum-steps", options.grad_accum_steps,
                  "Average N recorded steps into one optimizer step (default 1); a trace with "
                  "micro-steps has its own")
      ->option_text("N");
  command
      .add_option(
          "--optimizer", options.optimizers,
          "Optimizer of the gradients that match a pattern, repeatable; all share the scale")
      ->option_text("NAME=GLOB")
      ->allow_extra_args(false);
  command
      .add_option("--state", request.states,
                  "Start from a checkpoint: a field of the policy's state, or scale; repeatable; "
                  "POLICY.KEY=VALUE for one")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command
      .add_option("--resume-at", options.resume_at,
                  "Also replay each run interrupted before this step, resumed from a checkpoint "
                  "with the loss scale only and from none")
      ->option_text("STEP");
}

void Apply(const TrainingOptions& options, SimulationRequest& request, ReplayOptions& replay) {
  const auto number = [](const std::string& text, const char* option, std::optional<double>& into) {
    if (!text.empty()) into = ParseNumber(text, option);
  };
  number(options.max_gradient_norm, "--max-gradient-norm", request.clipping.max_norm);
  number(options.max_gradient_value, "--max-gradient-value", request.clipping.max_value);
  if (!options.grad_accum_steps.empty()) {
    replay.accumulate_steps = ParseInteger(options.grad_accum_steps, "--grad-accum-steps");
  }
  if (!options.resume_at.empty()) {
    request.resume_at = ParseInteger(options.resume_at, "--resume-at");
  }
  for (const std::string& text : options.optimizers) {
    replay.optimizers.push_back(ParseOptimizer(text, replay.optimizers));
  }
}

void CheckAgainst(const SourceFacts& facts, const SimulationRequest& request) {
  if (!request.resume_at) return;
  const int64_t first = facts.first_step, last = facts.last_step;
  if (*request.resume_at <= first || *request.resume_at > last) {
    throw UsageError("--resume-at", "no recorded step on one side of it",
                     std::to_string(first + 1) + " to " + std::to_string(last),
                     std::to_string(*request.resume_at));
  }
}

void CheckOptimizers(const std::vector<OptimizerGroup>& optimizers,
                     const std::vector<SimulationRun>& runs) {
  const auto replayed = [](const SimulationRun& run) { return !run.result.steps.empty(); };
  if (std::ranges::none_of(runs, replayed)) return;
  for (size_t g = 0; g < optimizers.size(); ++g) {
    const auto in_step = [&](const ReplayStep& step) { return step.optimizers[g].has_gradients; };
    const auto in_run = [&](const SimulationRun& run) {
      return std::ranges::any_of(run.result.steps, in_step);
    };
    if (std::ranges::any_of(runs, in_run)) continue;
    throw UsageError("--optimizer",
                     "no parameter gradient is left for " + Quoted(optimizers[g].name),
                     "a pattern of names in the trace", Quoted(optimizers[g].tensors));
  }
}

Json Describe(const SimulationRequest& request, const ReplayOptions& replay) {
  Json object = Json::object();
  const Clipping& clipping = request.clipping;
  if (clipping.max_norm) object["max_gradient_norm"] = *clipping.max_norm;
  if (clipping.max_value) object["max_gradient_value"] = *clipping.max_value;
  if (request.clip_rule) object["clip_rule"] = NameOf(*request.clip_rule);
  if (clipping.domain == ClipDomain::kScaled) object["clip_at"] = NameOf(clipping.domain);
  if (replay.accumulate_steps != 1) object["grad_accum_steps"] = replay.accumulate_steps;
  for (const OptimizerGroup& group : replay.optimizers) {
    object["optimizers"][group.name] = group.tensors;
  }
  if (!request.states.empty()) object["state"] = request.states;
  if (request.resume_at) object["resume_at"] = *request.resume_at;
  return object;
}

}  // namespace dlsim::sim
