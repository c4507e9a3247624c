// SPDX-License-Identifier: Apache-2.0
// The replays behind a recommendation: itself, the stacks' defaults, and two static scales that
// show which tensors stand in each other's way.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "dlsim/ladder.h"
#include "sim/advice/evidence.h"
#include "sim/advice/policy_score.h"
#include "sim/policies/static_scale.h"
#include "sim/replay/harm.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {
namespace {

// No scaling, the defaults of the stacks, and what is used today.
std::vector<CurrentPolicy> Compared(const std::optional<CurrentPolicy>& current) {
  std::vector<CurrentPolicy> compared = {
      {"no scaling", "static", {"loss_scale=1"}},
      {"Cerebras, as documented", "cerebras", {}},
      {"Cerebras 2.10", "cerebras-2.10", {}},
      {"torch", "torch", {}},
      {"DeepSpeed JSON", "deepspeed", {"init_scale=2^16", "delayed_shift=2"}},
      {"DeepSpeed class", "deepspeed", {}},
      {"Megatron-LM", "megatron", {}}};
  if (current) compared.push_back(*current);
  return compared;
}

// What to change in the parameters of the last policy compared, which is the current one.
std::vector<ParameterChange> ChangesOf(const FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  const ComparedPolicy& current = tuning.comparisons.back();
  std::vector<ParameterChange> changes;
  if (current.policy != choice.policy->name) return changes;
  for (const NamedValue& to : choice.scaler->parameters) {
    const auto from = std::ranges::find(current.parameters, to.name, &NamedValue::name);
    if (from == current.parameters.end() || from->value == to.value) continue;
    changes.push_back({*from, to});
  }
  return changes;
}

// One replay, and where its score goes, and its tensors if they are wanted.
struct Job {
  ReplayRun run;
  PolicyScore* score = nullptr;
  std::vector<ReplayTensor>* tensors = nullptr;
};

void AddComparison(const CurrentPolicy& compared, const ReplayRun& prototype, ComparedPolicy& row,
                   std::vector<Job>& jobs) {
  const PolicyInfo& policy = FindPolicy(compared.policy);
  row.label = compared.label;
  row.policy = policy.name;
  try {
    ConfiguredScaler configured =
        policy.make(ResolveParameters(policy, compared.settings), prototype.format);
    row.parameters = std::move(configured.parameters);
    ReplayRun run = prototype;
    run.rules = policy.rules;
    run.scaler = std::move(configured.scaler);
    jobs.push_back({std::move(run), &row.score});
  } catch (const PolicyRefusal& refusal) {
    row.parameters = refusal.parameters;
    row.refusal = refusal.type + ": " + refusal.message;
  }
}

ReplayRun StaticRunAt(const ReplayRun& prototype, double scale) {
  ReplayRun run = prototype;
  run.scaler = LossScaler::Make<StaticScale>({static_cast<float>(scale)});
  return run;
}

// Replays what was chosen, to replace the prediction.
void AddChoice(PolicyChoice& choice, const ReplayRun& prototype, std::vector<ReplayTensor>* tensors,
               std::vector<Job>& jobs) {
  ReplayRun run = prototype;
  run.policy = choice.policy->name;
  run.rules = choice.policy->rules;
  run.scaler = choice.scaler->scaler;
  jobs.push_back({std::move(run), &choice.score, tensors});
}

void AddBlame(FormatTuning& tuning, const ReplayRun& prototype, std::vector<Job>& jobs) {
  const CommonScales scales = CommonScalesOf(tuning.windows);
  if (!scales.empty()) return;
  const double low = std::fmin(scales.low, std::ldexp(1.0, kHighestScaleExponent));
  jobs.push_back({StaticRunAt(prototype, low), nullptr, &tuning.overflow_side});
  if (static_cast<float>(scales.high) <= 0) return;
  jobs.push_back({StaticRunAt(prototype, scales.high), nullptr, &tuning.underflow_side});
}

// Keeps the parameter gradients that are guilty, the worst first.
template <class Guilty, class Guilt>
void Blame(const Guilty& guilty, const Guilt& guilt, std::vector<ReplayTensor>& tensors) {
  std::erase_if(tensors, [&](const ReplayTensor& tensor) {
    return tensor.role != Role::kGrad || !guilty(tensor);
  });
  std::ranges::stable_sort(tensors, std::greater(), guilt);
}

// In one pass over the steps.
void RunAll(const GradientSource& source, const ReplayOptions& options, std::span<const Job> jobs) {
  std::vector<ReplayRun> runs;
  for (const Job& job : jobs) {
    runs.push_back(job.run);
    if (job.tensors == nullptr) runs.back().asked = Asked::kErrors;
    runs.back().tensor_records =
        job.tensors == nullptr ? TensorRecords::kDropped : TensorRecords::kGradients;
  }
  std::vector<ReplayResult> results = Replay(source, std::move(runs), options);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    if (job.score) *job.score = ScoreOf(results[i], source.step_count(), job.run.conversion);
    if (job.tensors) *job.tensors = std::move(results[i].tensors);
  }
}

// What follows from the replays of a format.
void Conclude(const ReplayRun& prototype, bool compares_current, FormatTuning& tuning) {
  if (compares_current) tuning.changes = ChangesOf(tuning);
  for (PolicyChoice& choice : tuning.choices) {
    choice.optimal = choice.score.mean_loss <= tuning.least_loss + kLossResolution;
  }
  const auto worst_harm = [](const ReplayTensor& tensor) { return tensor.harm.worst; };
  Blame([](const ReplayTensor& tensor) { return tensor.stats.overflow > 0; },
        [](const ReplayTensor& tensor) { return tensor.stats.absmax; }, tuning.overflow_side);
  const double limit = HarmLimit(prototype.conversion, false);
  Blame([&](const ReplayTensor& tensor) { return worst_harm(tensor) > limit; }, worst_harm,
        tuning.underflow_side);
}

}  // namespace

void ReplayEvidence(const GradientSource& source, const ReplayOptions& options,
                    std::span<const ReplayRun> prototypes,
                    const std::optional<CurrentPolicy>& current, std::span<FormatTuning> tunings) {
  const std::vector<CurrentPolicy> compared = Compared(current);
  std::vector<Job> jobs;
  for (size_t f = 0; f < tunings.size(); ++f) {
    FormatTuning& tuning = tunings[f];
    for (PolicyChoice& choice : tuning.choices) {
      const bool recommended = &choice == &tuning.choices.front();
      AddChoice(choice, prototypes[f], recommended ? &tuning.replayed : nullptr, jobs);
    }
    jobs.push_back({StaticRunAt(prototypes[f], tuning.fixed_scale), &tuning.fixed});
    tuning.comparisons.resize(compared.size());
    for (size_t i = 0; i < compared.size(); ++i) {
      AddComparison(compared[i], prototypes[f], tuning.comparisons[i], jobs);
    }
    AddBlame(tuning, prototypes[f], jobs);
  }
  RunAll(source, options, jobs);
  for (size_t f = 0; f < tunings.size(); ++f) {
    Conclude(prototypes[f], current.has_value(), tunings[f]);
  }
}

}  // namespace dlsim::sim
