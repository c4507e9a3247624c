// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/measure_step.h"
#include "sim/updates/distance.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// The mean of what has a value.
class Mean {
 public:
  void Add(const std::optional<double>& value) {
    if (!value) return;
    sum_ += *value;
    ++count_;
  }
  std::optional<double> value() const {
    if (count_ == 0) return std::nullopt;
    return sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  size_t count_ = 0;
};

void Put(const std::vector<float>& values, const StoredFormat& format, TensorState& state,
         std::vector<float> TensorState::*member) {
  std::vector<float>& stored = state.*member;
  stored.resize(state.weights.size());
  const size_t count = std::min(values.size(), stored.size());
  for (size_t i = 0; i < count; ++i) stored[i] = StoredIn(format, values[i]);
}

// Keeps the step from which on something holds to the end.
void Since(bool holds, int64_t step, std::optional<int64_t>& since) {
  if (!holds) since.reset();
  if (holds && !since) since = step;
}

}  // namespace

UpdateReplay::UpdateReplay(const ProbeHead& head, const ProbeValues& start,
                           std::span<const UpdateRun> runs, uint64_t seed, std::string place)
    : head_(head),
      place_(std::move(place)),
      seed_(seed),
      runs_(runs.begin(), runs.end()),
      all_(runs_),
      harmed_since_(runs_.size()) {
  for (const UpdateRun& run : runs_) {
    const auto same = [&](const UpdateRun& other) { return other.overrides == run.overrides; };
    const auto begin = all_.begin() + static_cast<ptrdiff_t>(runs_.size());
    auto found = std::find_if(begin, all_.end(), same);
    if (found == all_.end()) found = all_.insert(found, ReferenceOf(run.overrides));
    reference_of_.push_back(static_cast<size_t>(found - all_.begin()));
  }
  for (size_t r = runs_.size(); r < all_.size(); ++r) reference_of_.push_back(r);
  Begin(start);
}

void UpdateReplay::Begin(const ProbeValues& start) {
  start_ = start.values;
  size_t first = 0;
  for (const ProbeTensor& tensor : head_.tensors) {
    tensors_.push_back({first, tensor.count});
    first += tensor.count;
  }
  kept_.resize(tensors_.size());
  for (size_t t = 0; t < tensors_.size(); ++t) {
    for (const UpdateRun& run : all_) {
      Kept kept;
      kept.state.first.resize(tensors_[t].count);
      kept.state.second.resize(tensors_[t].count);
      if (run.compensation == Compensation::kKahan) {
        kept.state.compensation.resize(tensors_[t].count);
      }
      for (const float value : StartOf(t)) {
        kept.state.weights.push_back(StoredIn(run.updated_weights(), value));
      }
      kept_[t].push_back(std::move(kept));
    }
  }
  for (const ProbeState& state : start.states) BeginStates(state);
}

void UpdateReplay::BeginStates(const ProbeState& state) {
  FollowedTensor& tensor = tensors_.at(state.tensor);
  tensor.updates = state.updates;
  for (const auto& [name, values] : state.values) {
    const bool first = name == "exp_avg" || name == "momentum_buffer";
    tensor.has_first = tensor.has_first || first;
    for (size_t r = 0; r < all_.size(); ++r) {
      TensorState& kept = kept_[state.tensor][r].state;
      if (first) Put(values, all_[r].first, kept, &TensorState::first);
      if (name == "exp_avg_sq" || name == "variance") {
        Put(values, all_[r].second, kept, &TensorState::second);
      }
      if (name == "max_exp_avg_sq") {
        Put(values, all_[r].second, kept, &TensorState::max_second);
      }
    }
  }
}

void UpdateReplay::Renew(const ProbeValues& recorded) {
  for (const ProbeState& state : recorded.states) {
    if (state.updates > 0 || !state.values.empty()) continue;
    FollowedTensor& tensor = tensors_.at(state.tensor);
    tensor.updates = 0;
    tensor.has_first = false;
    for (Kept& kept : kept_[state.tensor]) {
      TensorState& now = kept.state;
      for (auto* values : {&now.first, &now.second, &now.max_second, &now.compensation}) {
        std::ranges::fill(*values, 0.0f);
      }
    }
  }
}

void UpdateReplay::Take(const ProbeStep& step) {
  ParallelFor(
      tensors_.size(), [&](size_t tensor) { TakeTensor(tensor, step); },
      start_.size() * all_.size() * 16);
  NoteRuns(step.step);
}

void UpdateReplay::TakeTensor(size_t tensor, const ProbeStep& step) {
  if (!step.updated[tensor]) return;
  FollowedTensor& followed = tensors_[tensor];
  const std::string place = fmt::format("{}: step {}", place_, step.step);
  TensorStep tensor_step;
  tensor_step.gradients = std::span(step.gradients).subspan(followed.first, followed.count);
  tensor_step.update = ++followed.updates;
  tensor_step.has_first = std::exchange(followed.has_first, true);
  tensor_step.random = {seed_, StreamOf(head_.tensors[tensor].name, step.step,
                                        static_cast<int64_t>(followed.updates))};
  const ProbeGroup& group = step.groups.at(step.group_of.at(tensor));
  const auto update = [&](size_t run) {
    tensor_step.settings = SettingsOf(group, all_[run].overrides, place);
    UpdateTensor(all_[run], tensor_step, kept_[tensor][run].state);
  };
  for (size_t run = runs_.size(); run < all_.size(); ++run) update(run);
  for (size_t run = 0; run < runs_.size(); ++run) {
    update(run);
    Note(tensor, run, step.step);
  }
}

void UpdateReplay::Note(size_t tensor, size_t run, int64_t step) {
  Kept& kept = kept_[tensor][run];
  if (kept.state.counts.lost > 0 && !kept.first_lost) kept.first_lost = step;
  Distance distance;
  distance.Add(StartOf(tensor), Float32Of(run, tensor).weights, kept.state.weights);
  kept.drift = distance.drift();
  kept.nonfinite = distance.nonfinite();
  const bool harmed = kept.nonfinite > 0 || kept.drift.value_or(0) > kHarmfulDrift;
  Since(harmed, step, kept.harmed_since);
}

void UpdateReplay::NoteRuns(int64_t step) {
  for (size_t run = 0; run < runs_.size(); ++run) {
    Mean drift;
    bool finite = true;
    for (const std::vector<Kept>& kept : kept_) {
      drift.Add(kept[run].drift);
      finite = finite && kept[run].nonfinite == 0;
    }
    Since(!finite || drift.value().value_or(0) > kHarmfulDrift, step, harmed_since_[run]);
  }
}

TensorOutcome UpdateReplay::OutcomeOf(size_t tensor, size_t run) const {
  const Kept& kept = kept_[tensor][run];
  TensorOutcome outcome;
  outcome.counts = kept.state.counts;
  outcome.first_lost = kept.first_lost;
  outcome.harmed_since = kept.harmed_since;
  Distance distance;
  distance.Add(StartOf(tensor), Float32Of(run, tensor).weights, kept.state.weights);
  outcome.drift = distance.drift();
  outcome.progress = distance.progress();
  outcome.nonfinite = distance.nonfinite();
  outcome.second_bias = SecondBias(Float32Of(run, tensor).second, kept.state.second);
  return outcome;
}

std::vector<RunOutcome> UpdateReplay::Outcomes() const {
  std::vector<RunOutcome> outcomes;
  for (size_t r = 0; r < runs_.size(); ++r) {
    RunOutcome run;
    run.run = runs_[r];
    run.harmed_since = harmed_since_[r];
    Mean drift, progress, log_bias;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const TensorOutcome& tensor = run.tensors.emplace_back(OutcomeOf(t, r));
      run.counts.updates += tensor.counts.updates;
      run.counts.lost += tensor.counts.lost;
      run.counts.altered += tensor.counts.altered;
      run.nonfinite += tensor.nonfinite;
      if (tensor.first_lost && (!run.first_lost || *tensor.first_lost < *run.first_lost)) {
        run.first_lost = tensor.first_lost;
        run.first_lost_tensor = t;
      }
      drift.Add(tensor.drift);
      progress.Add(tensor.progress);
      if (tensor.second_bias && *tensor.second_bias > 0)
        log_bias.Add(std::log(*tensor.second_bias));
    }
    run.drift = drift.value();
    run.progress = progress.value();
    if (log_bias.value()) run.second_bias = std::exp(*log_bias.value());
    outcomes.push_back(std::move(run));
  }
  return outcomes;
}

std::optional<double> UpdateReplay::DistanceFrom(const ProbeValues& recorded) const {
  Distance distance;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (head_.tensors[t].dtype != DType::kF32) continue;
    const std::span<const float> trained =
        std::span(recorded.values).subspan(tensors_[t].first, tensors_[t].count);
    distance.Add(StartOf(t), trained, Float32Of(0, t).weights);
  }
  return distance.drift();
}

const TensorState& UpdateReplay::StateOf(size_t run, size_t tensor) const {
  return kept_[tensor][run].state;
}

const TensorState& UpdateReplay::Float32Of(size_t run, size_t tensor) const {
  return kept_[tensor][reference_of_[run]].state;
}

std::span<const float> UpdateReplay::StartOf(size_t tensor) const {
  return std::span(start_).subspan(tensors_[tensor].first, tensors_[tensor].count);
}

}  // namespace dlsim::sim
