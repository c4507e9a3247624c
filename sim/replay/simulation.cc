// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/simulation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/sim/replay.h"
#include "sim/base/quantity.h"
#include "sim/policies/policy.h"
#include "sim/replay/replay_runs.h"
#include "src/base/check.h"

namespace dlsim::sim {

HeatMap::HeatMap(size_t steps, uint64_t max_bins)
    : steps_(steps), bin_count_(static_cast<size_t>(std::min<uint64_t>(steps, max_bins))) {
  DLSIM_CHECK(max_bins > 0);
}

// Nearly every step has the tensors of the one before, at the same positions.
HeatMapRow& HeatMap::RowOf(const TensorInfo& tensor, size_t position) {
  if (position < rows_.size() && rows_[position].name == tensor.name &&
      rows_[position].role == tensor.role) {
    return rows_[position];
  }
  const auto [found, added] = row_of_.try_emplace({tensor.name, tensor.role}, rows_.size());
  if (added) rows_.push_back({tensor.name, tensor.role, std::vector<TensorStats>(bin_count_)});
  return rows_[found->second];
}

void HeatMap::Add(size_t index, const ReplayStep& record, const Step& step,
                  const StepAnswer& answers) {
  const size_t bin = index * bin_count_ / steps_;
  DLSIM_CHECK(bin < bin_count_ && bin <= bins_.size());
  if (bin == bins_.size()) bins_.push_back({record.step, record.step, 0, 0});
  StepBin& column = bins_[bin];
  column.last_step = record.step;
  ++column.steps;
  column.skipped_steps += record.skipped;
  for (size_t t = 0; t < answers.size(); ++t) {
    RowOf(step.gradients()[t], t).cells[bin].Merge(answers[t].total);
  }
}

ReplayRun MakeRun(const NamedFormat& format, const PolicyInfo& policy, ConfiguredScaler configured,
                  Conversion conversion) {
  conversion.format = format.format;
  return {.format = format.name,
          .policy = std::string(policy.name),
          .conversion = conversion,
          .rules = policy.rules,
          .scaler = std::move(configured.scaler),
          .clipping = {.max_norm = {}, .max_value = {}, .rule = policy.rules.clip_rule},
          .initial = std::move(configured.initial)};
}

ReplayRun MakeRun(std::string_view format, std::string_view policy,
                  std::span<const std::string> settings) {
  const NamedFormat named = ParseFormat(format);
  const PolicyInfo& info = FindPolicy(policy);
  return MakeRun(named, info, info.make(ResolveParameters(info, settings), named.name));
}

std::vector<ReplayResult> Replay(const StepSource& source, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  const StepOptions step_options = OptionsFor(runs, options.step);
  ReplayRuns replay(std::move(runs), options);
  ForEachStep(source, step_options, [&](size_t i, const Step& step) {
    replay.Take(i, step);
    return !replay.AllStopped();
  });
  return replay.TakeResults();
}

void PathSummary::Add(const PathStep& step, double energy_lost) {
  if (steps++ == 0) min_scale = max_scale = step.scale;
  min_scale = step.scale < min_scale ? step.scale : min_scale;
  max_scale = step.scale > max_scale ? step.scale : max_scale;
  final_scale = step.next_scale;
  nonfinite_steps += !step.finite;
  hopeless_steps += !step.lower_scale_helps;
  skipped_steps += step.skipped;
  skip_run = step.skipped ? skip_run + 1 : 0;
  longest_skip_run = std::max(longest_skip_run, skip_run);
  if (step.skipped) return;
  if (!first_applied_step) first_applied_step = step.step;
  worst_step_energy_lost = std::max(worst_step_energy_lost, energy_lost);
}

void ReplaySummary::Add(const ReplayStep& step) {
  PathSummary::Add(step, step.gradients.energy_lost());
  clipped_elements += step.clipped_elements.value_or(0);
  clippable_elements += step.clippable_elements;
  clipped_steps += step.clipped;
  gradients.Merge(step.gradients);
  activations.Merge(step.activations);
  if (!step.skipped && !step.harm.worst_tensor.empty()) harm.Add(step.harm.mean);
  if (!step.skipped && !step.activation_harm.worst_tensor.empty()) {
    activation_harm.Add(step.activation_harm.mean);
  }
}

namespace {

// The error texts are those of the Model Zoo.
void RequireOneClipping(const Clipping& clipping) {
  const auto require_positive = [](const std::optional<double>& limit, const char* name) {
    if (!limit) return;
    if (!(*limit > 0)) {
      throw UsageError(name, "has to be a positive float. Got " + PythonRepr(*limit));
    }
    const float limit32 = static_cast<float>(*limit);
    if (limit32 > 0 && std::isfinite(limit32)) return;
    throw UsageError(name, "out of range", "a number that float32 can hold", PythonRepr(*limit));
  };
  require_positive(clipping.max_norm, "max_gradient_norm");
  require_positive(clipping.max_value, "max_gradient_value");
  if (!clipping.max_norm || !clipping.max_value) return;
  throw UsageError("clipping",
                   "Gradients can be clipped by norm(=" + PythonRepr(*clipping.max_norm) +
                       ") or by value(=" + PythonRepr(*clipping.max_value) +
                       "), but not both. Do not set both `max_gradient_norm` and "
                       "`max_gradient_value`.");
}

SimulationRun PrepareRun(const SimulationRequest& request, const std::string& format_name,
                         const PolicyInfo& policy, bool only_policy) {
  const NamedFormat format = ParseFormat(format_name);
  SimulationRun run;
  run.format = format.name;
  run.policy = std::string(policy.name);
  run.rules = policy.rules;
  if (request.finite_test) run.rules.finite_test = *request.finite_test;
  if (request.clip_rule) run.rules.clip_rule = *request.clip_rule;
  try {
    const std::vector<std::string> parameters =
        SettingsFor(policy, request.settings, ParameterSettings(), only_policy);
    ConfiguredScaler configured = policy.make(ResolveParameters(policy, parameters), format.name);
    run.parameters = std::move(configured.parameters);
    run.notes = std::move(configured.notes);
    RestoreState(SettingsFor(policy, request.states, StateSettings(), only_policy), policy.name,
                 configured);
    run.start = MakeRun(format, policy, std::move(configured), request.conversion);
    run.start->rules = run.rules;
    run.start->clipping = request.clipping;
    run.start->clipping.rule = run.rules.clip_rule;
  } catch (const PolicyRefusal& refusal) {
    run.parameters = refusal.parameters;
    run.result.events.push_back({-1, refusal.type, refusal.message, true, {}});
  }
  return run;
}

}  // namespace

std::string_view OwnPolicyOf(const std::string& format) {
  const NamedFormat named = ParseFormat(format);
  if (named.format == kCb16) return "cerebras";
  return named.format.exponent_bits >= 8 ? "static" : "torch";
}

std::vector<SimulationRun> PrepareRuns(const SimulationRequest& request) {
  RequireOneClipping(request.clipping);
  std::vector<std::vector<const PolicyInfo*>> by_format;
  std::vector<const PolicyInfo*> all;
  for (const std::string& format : request.formats) {
    by_format.push_back(NamedPolicies(request.policies.empty()
                                          ? std::vector{std::string(OwnPolicyOf(format))}
                                          : request.policies));
    std::ranges::copy(by_format.back(), std::back_inserter(all));
  }
  RequireUsed(all, request.settings, ParameterSettings());
  RequireUsed(all, request.states, StateSettings());
  std::vector<SimulationRun> runs;
  for (size_t f = 0; f < request.formats.size(); ++f) {
    const std::string& format = request.formats[f];
    const std::vector<const PolicyInfo*>& policies = by_format[f];
    const bool only = !request.policies.empty() && policies.size() == 1;
    for (const PolicyInfo* policy : policies) {
      runs.push_back(PrepareRun(request, format, *policy, only));
      if (!request.resume_at || !runs.back().start) continue;
      const SimulationRun whole = runs.back();
      for (const Kept kept : {Kept::kScale, Kept::kNothing}) {
        SimulationRun& twin = runs.emplace_back(whole);
        twin.notes.clear();
        twin.resume = twin.start->resume = Resume{*request.resume_at, kept};
      }
    }
  }
  return runs;
}

std::string RunLabel(const SimulationRun& run) {
  return (run.config.empty() ? "" : run.config + " ") + run.format + " " + run.policy;
}

std::optional<int64_t> FirstDifference(const ReplayResult& whole, const ReplayResult& interrupted) {
  const auto same = [](const ReplayStep& a, const ReplayStep& b) {
    const bool same_scale = a.scale == b.scale || (std::isnan(a.scale) && std::isnan(b.scale));
    return same_scale && a.skipped == b.skipped;
  };
  const auto [a, b] = std::mismatch(whole.steps.begin(), whole.steps.end(),
                                    interrupted.steps.begin(), interrupted.steps.end(), same);
  if (b != interrupted.steps.end()) return b->step;
  if (a != whole.steps.end()) return a->step;
  return std::nullopt;
}

void Simulate(const StepSource& source, ReplayOptions options, std::vector<SimulationRun>& runs,
              std::optional<uint64_t> heat_map_bins,
              const std::function<void(size_t i, const Step& step)>& also) {
  std::vector<ReplayRun> starts;
  std::vector<SimulationRun*> owners;
  for (SimulationRun& run : runs) {
    if (!run.start) continue;
    starts.push_back(*run.start);
    owners.push_back(&run);
    if (heat_map_bins) run.heat_map.emplace(source.step_count, *heat_map_bins);
  }
  if (heat_map_bins) {
    options.observer = [&owners, next = options.observer](const ObservedStep& step) {
      for (const ObservedStep::Run& run : step.runs) {
        owners[run.index]->heat_map->Add(step.index, run.record, step.step, *run.answers);
      }
      if (next) next(step);
    };
  }
  const StepOptions step_options = OptionsFor(starts, options.step);
  ReplayRuns replay(std::move(starts), options);
  ForEachStep(source, step_options, [&](size_t i, const Step& step) {
    replay.Take(i, step);
    if (also) also(i, step);
    return also || !replay.AllStopped();
  });
  std::vector<ReplayResult> results = replay.TakeResults();
  const SimulationRun* whole = nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    owners[i]->result = std::move(results[i]);
    if (!owners[i]->resume) whole = owners[i];
    if (owners[i]->resume) {
      owners[i]->first_difference = FirstDifference(whole->result, owners[i]->result);
    }
  }
}

}  // namespace dlsim::sim
