// SPDX-License-Identifier: Apache-2.0
// The replays behind a recommendation: itself, the stacks' defaults, and two static scales that
// show which tensors stand in each other's way.
#include <algorithm>
#include <array>
#include <cmath>

#include "dlsim/ladder.h"
#include "sim/advice/scale_window.h"
#include "sim/policies/static_scale.h"
#include "sim/tune/evidence.h"
#include "sim/tune/policy_search.h"
#include "sim/tune/tuning.h"

namespace dlsim::sim {
namespace {

struct StackDefaults {
  std::string_view label, policy;
  std::vector<std::string> settings;
};

const std::vector<StackDefaults>& Defaults() {
  static const std::vector<StackDefaults> kDefaults = {
      {"no scaling", "static", {"loss_scale=1"}},
      {"Cerebras, as documented", "cerebras", {}},
      {"Cerebras 2.10", "cerebras-2.10", {}},
      {"torch", "torch", {}},
      {"DeepSpeed JSON", "deepspeed", {"init_scale=2^16", "delayed_shift=2"}},
      {"DeepSpeed class", "deepspeed", {}},
      {"Megatron-LM", "megatron", {}}};
  return kDefaults;
}

// One replay, and what becomes of its result.
struct Job {
  ReplayRun run;
  std::function<void(ReplayResult)> done;
};

void AddComparison(const StackDefaults& defaults, const ReplayRun& prototype, size_t steps,
                   ComparedPolicy& row, std::vector<Job>& jobs) {
  const PolicyInfo& policy = FindPolicy(defaults.policy);
  row.label = defaults.label;
  row.policy = defaults.policy;
  try {
    ConfiguredScaler configured =
        policy.make(ResolveParameters(policy, defaults.settings), prototype.format);
    row.parameters = std::move(configured.parameters);
    ReplayRun run = prototype;
    run.rules = policy.rules;
    run.scaler = std::move(configured.scaler);
    jobs.push_back({std::move(run),
                    [&row, steps, conversion = prototype.conversion](const ReplayResult& result) {
                      row.mean_loss = MeanLossOf(result, steps, conversion);
                      const auto lost = [](const ReplayStep& s) { return s.skipped || !s.finite; };
                      row.skipped =
                          static_cast<uint64_t>(std::ranges::count_if(result.steps, lost));
                      const auto first = std::ranges::find_if_not(result.steps, lost);
                      row.first_skips = static_cast<uint64_t>(first - result.steps.begin());
                      row.final_scale = result.steps.empty() ? 0 : result.steps.back().next_scale;
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
  const double threshold = kHarmThreshold + RoundingFloor(prototype.conversion);
  jobs.push_back({StaticRunAt(prototype, low), [&tuning, threshold](const ReplayResult& result) {
                    tuning.overflow_side = Blamed(result, true, threshold);
                  }});
  if (static_cast<float>(tuning.window.high) <= 0) return;
  jobs.push_back({StaticRunAt(prototype, tuning.window.high),
                  [&tuning, threshold](const ReplayResult& result) {
                    tuning.underflow_side = Blamed(result, false, threshold);
                  }});
}

}  // namespace

double MeanLossOf(const ReplayResult& result, size_t steps, const Conversion& conversion) {
  double lost = static_cast<double>(steps - std::min(steps, result.steps.size()));
  for (const ReplayStep& step : result.steps) {
    lost += step.skipped || !step.finite ? 1.0 : LossOf(step, conversion);
  }
  return steps == 0 ? 0 : lost / static_cast<double>(steps);
}

void ReplayEvidence(const TuneSource& source, std::vector<FormatTuning>& tunings,
                    const std::vector<ReplayRun>& prototypes) {
  std::vector<Job> jobs;
  for (size_t f = 0; f < tunings.size(); ++f) {
    FormatTuning& tuning = tunings[f];
    const PolicyChoice& choice = tuning.choices.front();
    ReplayRun run = prototypes[f];
    run.scaler = choice.family.Make(choice.score.parameters)->scaler;
    jobs.push_back({std::move(run),
                    [&tuning](ReplayResult result) { tuning.recommended = std::move(result); }});
    tuning.comparisons.resize(Defaults().size());
    for (size_t i = 0; i < Defaults().size(); ++i) {
      AddComparison(Defaults()[i], prototypes[f], source.step_count, tuning.comparisons[i], jobs);
    }
    AddBlame(tuning, prototypes[f], jobs);
  }
  std::vector<ReplayRun> runs;
  for (const Job& job : jobs) runs.push_back(job.run);
  std::vector<ReplayResult> results = source.replay(std::move(runs));
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].done(std::move(results[i]));
}

}  // namespace dlsim::sim
