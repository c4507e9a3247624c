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
  if (FindPolicy(current.policy).name != choice.family.policy->name) return changes;
  const std::optional<ConfiguredScaler> recommended = choice.family.Make(choice.score.parameters);
  for (const NamedValue& to : recommended->parameters) {
    const auto from = std::ranges::find(current.parameters, to.name, &NamedValue::name);
    if (from == current.parameters.end() || from->value == to.value) continue;
    changes.push_back({*from, to});
  }
  return changes;
}

// One replay, and what becomes of its result.
struct Job {
  ReplayRun run;
  std::function<void(ReplayResult)> done;
  TensorRecords tensor_records = TensorRecords::kDropped;
};

void AddComparison(const CurrentPolicy& compared, const ReplayRun& prototype, size_t steps,
                   ComparedPolicy& row, std::vector<Job>& jobs) {
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
    jobs.push_back({std::move(run),
                    [&row, steps, conversion = prototype.conversion](const ReplayResult& result) {
                      row.score = ScoreOf(result, steps, conversion);
                    }});
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

// The parameter gradients of a static replay that overflow, or that lose too much; worst first.
std::vector<BlamedTensor> Blamed(const ReplayResult& result, bool overflow, double threshold) {
  std::vector<BlamedTensor> tensors;
  for (const ReplayTensor& tensor : result.tensors) {
    if (tensor.role != Role::kGrad) continue;
    const BlamedTensor blamed = {tensor.name, tensor.stats.absmax, tensor.harm.worst,
                                 tensor.stats.overflow};
    const bool guilty = overflow ? blamed.overflow > 0 : blamed.worst_harm > threshold;
    if (guilty) tensors.push_back(blamed);
  }
  std::ranges::stable_sort(tensors, std::greater(), [&](const BlamedTensor& tensor) {
    return overflow ? tensor.absmax : tensor.worst_harm;
  });
  return tensors;
}

void AddBlame(FormatTuning& tuning, const ReplayRun& prototype, std::vector<Job>& jobs) {
  if (!tuning.window.empty()) return;
  const double highest = std::ldexp(1.0, kHighestScaleExponent);
  const double low = std::fmin(tuning.window.low, highest);
  const double threshold = HarmLimit(prototype.conversion, false);
  jobs.push_back({StaticRunAt(prototype, low),
                  [&tuning, threshold](const ReplayResult& result) {
                    tuning.overflow_side = Blamed(result, true, threshold);
                  },
                  TensorRecords::kKept});
  if (static_cast<float>(tuning.window.high) <= 0) return;
  jobs.push_back({StaticRunAt(prototype, tuning.window.high),
                  [&tuning, threshold](const ReplayResult& result) {
                    tuning.underflow_side = Blamed(result, false, threshold);
                  },
                  TensorRecords::kKept});
}

// The replay of what was chosen tells what was foretold.
void AddChoice(PolicyChoice& choice, const ReplayRun& prototype, size_t steps, ReplayResult* keep,
               std::vector<Job>& jobs) {
  ReplayRun run = prototype;
  run.policy = choice.family.policy->name;
  run.rules = choice.family.policy->rules;
  run.scaler = choice.family.Make(choice.score.parameters)->scaler;
  jobs.push_back({std::move(run),
                  [&choice, steps, keep, conversion = prototype.conversion](ReplayResult result) {
                    const ScaleParameters parameters = choice.score.parameters;
                    choice.score = ScoreOf(result, steps, conversion);
                    choice.score.parameters = parameters;
                    if (keep) *keep = std::move(result);
                  },
                  keep ? TensorRecords::kKept : TensorRecords::kDropped});
}

void AddStatic(StaticChoice& choice, const ReplayRun& prototype, size_t steps,
               std::vector<Job>& jobs) {
  jobs.push_back({StaticRunAt(prototype, choice.scale),
                  [&choice, steps, conversion = prototype.conversion](const ReplayResult& result) {
                    const PolicyScore score = ScoreOf(result, steps, conversion);
                    choice.mean_loss = score.mean_loss;
                    choice.nonfinite_steps = score.skipped;
                  }});
}

// In one pass, but for steps of very many tensors, whose answers to all would take too much memory.
void RunAll(const TuneSource& source, size_t tensors, std::span<const Job> jobs) {
  constexpr size_t kMostAnswers = size_t{1} << 22;
  const size_t at_once = std::max<size_t>(1, kMostAnswers / std::max<size_t>(1, tensors));
  for (size_t begin = 0; begin < jobs.size(); begin += at_once) {
    const auto together = jobs.subspan(begin, std::min(at_once, jobs.size() - begin));
    std::vector<ReplayRun> runs;
    for (const Job& job : together) {
      runs.push_back(job.run);
      runs.back().tensor_records = job.tensor_records;
    }
    std::vector<ReplayResult> results = source.replay(std::move(runs));
    for (size_t i = 0; i < together.size(); ++i) together[i].done(std::move(results[i]));
  }
}

}  // namespace

void ReplayEvidence(const TuneSource& source, size_t tensors, std::vector<FormatTuning>& tunings,
                    const std::vector<ReplayRun>& prototypes,
                    const std::optional<CurrentPolicy>& current) {
  const std::vector<CurrentPolicy> compared = Compared(current);
  std::vector<Job> jobs;
  for (size_t f = 0; f < tunings.size(); ++f) {
    FormatTuning& tuning = tunings[f];
    for (PolicyChoice& choice : tuning.choices) {
      const bool recommended = &choice == &tuning.choices.front();
      AddChoice(choice, prototypes[f], source.step_count,
                recommended ? &tuning.recommended : nullptr, jobs);
    }
    AddStatic(tuning.best_static, prototypes[f], source.step_count, jobs);
    tuning.comparisons.resize(compared.size());
    for (size_t i = 0; i < compared.size(); ++i) {
      AddComparison(compared[i], prototypes[f], source.step_count, tuning.comparisons[i], jobs);
    }
    AddBlame(tuning, prototypes[f], jobs);
  }
  RunAll(source, tensors, jobs);
  for (FormatTuning& tuning : tunings) {
    tuning.loss_at_one = tuning.comparisons.front().score.mean_loss;
    if (current) tuning.changes = ChangesOf(tuning);
    for (PolicyChoice& choice : tuning.choices) {
      choice.optimal = choice.score.mean_loss <= tuning.least_loss + kLossResolution;
    }
  }
}

}  // namespace dlsim::sim
