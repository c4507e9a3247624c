// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/scale_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "dlsim/codec.h"
#include "sim/advice/scale_window.h"
#include "sim/policies/static_scale.h"
#include "sim/replay/harm.h"

namespace dlsim::sim {
namespace {

// Records of steps that are held at once: some 500 bytes each.
constexpr size_t kStepsInFlight = 400'000;

bool Overflows(const Conversion& conversion, float absmax, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  for (const float value : {absmax, -absmax}) {
    const EncodeResult result =
        Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value * scale), ~0u);
    const CodeClass output = Classify(spec, result.code);
    if (output == CodeClass::kInfinity || output == CodeClass::kNan) return true;
  }
  return false;
}

// Returns the largest float32 scale at which no magnitude up to absmax overflows.
float ElementLimit(const Conversion& conversion, float absmax) {
  uint32_t low = 0, high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (Overflows(conversion, absmax, std::bit_cast<float>(middle))) {
      high = middle - 1;
    } else {
      low = middle;
    }
  }
  return std::bit_cast<float>(low);
}

}  // namespace

double LossOf(const ReplayStep& step, const Conversion& conversion) {
  const bool parameters_only = step.activation_harm.worst_tensor.empty();
  const double harm = std::fmax(step.harm.mean, step.activation_harm.mean);
  const double floor = RoundingFloor(conversion);
  const double threshold = parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold;
  return harm <= floor + threshold ? 0 : std::fmin(1, harm);
}

const ScaleColumn* ScaleTable::Find(float scale) const {
  if (const auto found = columns_.find(scale); found != columns_.end()) return &found->second;
  if (const auto found = bounds_.find(scale); found != bounds_.end()) return &found->second;
  const float* above = nullptr;
  for (const auto& [measured, column] : columns_) {
    if (measured > scale && (above == nullptr || measured < *above)) above = &measured;
  }
  ScaleColumn bound;
  bound.exact = false;
  bound.lost = above == nullptr ? std::vector<double>(step_count_, 0) : columns_.at(*above).lost;
  bool any_finite = false;
  for (const StepFacts& fact : facts_) {
    const bool finite = !fact.hopeless && double{scale} <= fact.limit;
    bound.finite.push_back(finite);
    any_finite |= finite;
  }
  if (!any_finite) bound.exact = true;  // nothing is applied: what it would lose does not matter
  return &bounds_.emplace(scale, std::move(bound)).first->second;
}

std::vector<float> ScaleTable::MeasuredScales() const {
  std::vector<float> scales;
  for (const auto& column : columns_) scales.push_back(column.first);
  std::sort(scales.begin(), scales.end());
  return scales;
}

void ScaleTable::Add(float scale, const ReplayResult& result) {
  ScaleColumn column;
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const ReplayStep& step = result.steps[i];
    column.lost.push_back(LossOf(step, prototype_.conversion));
    column.finite.push_back(step.finite);
    const bool all = checked_ == Checked::kAllGradients;
    const bool hopeless = !step.finite && !step.lower_scale_helps;
    Note(i, {.step = step.step,
             .absmax = std::fmax(step.gradients.absmax, all ? step.activations.absmax : 0.0f),
             .hopeless = hopeless,
             .nonfinite_input = step.cause == Cause::kInput,
             .tensor = hopeless ? step.cause_tensor : ""});
  }
  Add(scale, std::move(column));
}

void ScaleTable::Add(float scale, ScaleColumn column) {
  bounds_.clear();
  columns_.insert_or_assign(scale, std::move(column));
}

void ScaleTable::Note(size_t step, const StepFacts& fact) {
  if (step == facts_.size()) facts_.push_back(fact);
  StepFacts& known = facts_[step];
  known.nonfinite_input |= fact.nonfinite_input;
  known.hopeless |= fact.hopeless;
  if (fact.hopeless) known.tensor = fact.tensor;
}

void ScaleTable::FindLimits() {
  bounds_.clear();
  std::unordered_map<float, float> limits;
  for (size_t i = 0; i < facts_.size(); ++i) {
    StepFacts& fact = facts_[i];
    if (fact.hopeless) {
      fact.limit = 0;
      continue;
    }
    const auto [limit, is_new] = limits.try_emplace(fact.absmax, 0.0f);
    if (is_new) limit->second = ElementLimit(prototype_.conversion, fact.absmax);
    fact.limit = limit->second;
    // Other tests than that of each element can fail at a lower scale.
    for (const auto& [scale, column] : columns_) {
      if (column.finite[i] == 0 && double{scale} <= fact.limit) {
        fact.limit = std::nextafter(scale, 0.0f);
      }
    }
  }
}

namespace {

using Wanted = std::vector<std::pair<ScaleTable*, float>>;

void MeasureByReplay(const TuneSource& source, const Wanted& wanted) {
  const size_t batch = std::max<size_t>(1, kStepsInFlight / std::max<size_t>(1, source.step_count));
  for (size_t begin = 0; begin < wanted.size(); begin += batch) {
    const size_t end = std::min(wanted.size(), begin + batch);
    std::vector<ReplayRun> runs;
    for (size_t i = begin; i < end; ++i) {
      ReplayRun run = wanted[i].first->prototype();
      run.scaler = LossScaler::Make<StaticScale>({wanted[i].second});
      runs.push_back(std::move(run));
    }
    const std::vector<ReplayResult> results = source.replay(std::move(runs));
    for (size_t i = begin; i < end; ++i) wanted[i].first->Add(wanted[i].second, results[i - begin]);
  }
}

}  // namespace

void MeasureColumns(const TuneSource& source, std::span<const ColumnRequest> requests) {
  Wanted wanted;
  for (const ColumnRequest& request : requests) {
    for (const float scale : request.scales) {
      const std::pair item = {request.table, scale};
      const bool exact = source.ladder.empty() || std::ranges::binary_search(source.ladder, scale);
      if (!exact || request.table->Measured(scale) || std::ranges::count(wanted, item)) continue;
      wanted.push_back(item);
    }
  }
  // Tables that differ in their finite test alone share a measurement if they go together.
  std::ranges::stable_sort(wanted, {}, [](const auto& item) { return item.second; });
  MeasureByReplay(source, wanted);
  for (const ColumnRequest& request : requests) request.table->FindLimits();
}

}  // namespace dlsim::sim
