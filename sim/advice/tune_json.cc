// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/advice/advice.h"
#include "sim/advice/config_block_text.h"
#include "sim/advice/evidence.h"
#include "sim/advice/policy_score.h"
#include "sim/advice/tune_report.h"

namespace dlsim::sim {
namespace {

Json JsonChoice(const PolicyChoice& choice) {
  const PolicyScore& score = choice.score;
  return {{"policy", choice.policy->name},
          {"params", JsonFields(choice.named)},
          {"mean_loss", score.mean_loss},
          {"skipped_steps", score.skipped},
          {"skipped_before_first_applied", score.first_skips},
          {"errors_of_the_original", score.events},
          {"min_scale", JsonNumber(score.min_scale)},
          {"max_scale", JsonNumber(score.max_scale)},
          {"scale_grew", score.grew},
          {"eligible", score.eligible()},
          {"policies_tried", choice.evaluations},
          {"optimal", choice.optimal}};
}

Json JsonComparison(const ComparedPolicy& row) {
  Json object = {
      {"label", row.label}, {"policy", row.policy}, {"params", JsonFields(row.parameters)}};
  if (!row.refusal.empty()) {
    object["refused"] = row.refusal;
    return object;
  }
  object["mean_loss"] = row.score.mean_loss;
  object["skipped_steps"] = row.score.skipped;
  object["skipped_before_first_applied"] = row.score.first_skips;
  object["final_scale"] = JsonNumber(row.score.final_scale);
  return object;
}

Json JsonBlame(const std::vector<ReplayTensor>& tensors) {
  Json list = Json::array();
  for (const ReplayTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"absmax", JsonNumber(tensor.stats.absmax)},
                    {"worst_harm", tensor.harm.worst},
                    {"overflow", tensor.stats.overflow}});
  }
  return list;
}

Json JsonStatic(const FormatTuning& tuning) {
  const double scale = tuning.fixed_scale;
  const auto& range = tuning.safest;
  return {{"scale", scale},
          {"mean_loss", tuning.fixed.mean_loss},
          {"nonfinite_steps", tuning.fixed.skipped},
          {"low", range ? std::ldexp(1.0, range->low) : scale},
          {"high", range ? std::ldexp(1.0, range->high) : scale}};
}

Json JsonCommonScales(const FormatTuning& tuning) {
  const CommonScales scales = CommonScalesOf(tuning.windows);
  return {{"low", JsonNumber(scales.low)},   {"low_open", scales.low_open},
          {"high", JsonNumber(scales.high)}, {"low_step", scales.low_step},
          {"high_step", scales.high_step},   {"empty", scales.empty()}};
}

Json JsonHeadroom(const FormatTuning& tuning) {
  const Headroom room = HeadroomOf(tuning.windows);
  Json steps = Json::array();
  for (const StepWindow& step : tuning.windows) {
    steps.push_back({{"step", step.step},
                     {"largest_scale", step.hopeless ? Json() : JsonNumber(step.finite_scale)},
                     {"tensor", step.hopeless ? Json(step.high_tensor) : Json()}});
  }
  return {{"min", room.min},
          {"fifth_percentile", room.fifth_percentile},
          {"median", room.median},
          {"last", room.last},
          {"min_first_half", room.min_first_half},
          {"min_second_half", room.min_second_half},
          {"spread_binades", JsonNumber(room.spread_binades)},
          {"steps", steps}};
}

Json JsonTensors(const FormatTuning& tuning) {
  Json list = Json::array();
  for (const ReplayTensor& tensor : tuning.replayed) {
    if (tensor.role != Role::kGrad) continue;
    list.push_back({{"name", tensor.name},
                    {"mean_harm", JsonNumber(tensor.harm.mean())},
                    {"worst_harm", JsonNumber(tensor.harm.worst)},
                    {"worst_step_energy_lost", JsonNumber(tensor.worst_step_energy_lost)},
                    {"energy_lost", JsonNumber(tensor.stats.energy_lost())},
                    {"underflow", tensor.stats.underflow},
                    {"absmax", JsonNumber(tensor.stats.absmax)}});
  }
  return list;
}

Json JsonBlocks(const FormatTuning& tuning) {
  Json blocks;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    const std::optional<std::string> text =
        Trains(tuning) ? ConfigText(target, tuning) : std::nullopt;
    blocks[std::string(name)] = text ? Json(*text) : Json();
  }
  return blocks;
}

Json JsonFormat(const FormatTuning& tuning) {
  Json object = {{"format", tuning.format},
                 {"verdict", ScalingAdvised(tuning)},
                 {"reason", tuning.reason},
                 {"recommended", Trains(tuning) ? JsonChoice(tuning.choices.front()) : Json()}};
  object["other_policies"] = Json::array();
  for (size_t i = 1; Trains(tuning) && i < tuning.choices.size(); ++i) {
    object["other_policies"].push_back(JsonChoice(tuning.choices[i]));
  }
  object["static"] = Trains(tuning) ? JsonStatic(tuning) : Json();
  object["mean_loss_at_scale_1"] = tuning.comparisons.front().score.mean_loss;
  object["least_possible_mean_loss"] = tuning.least_loss;
  object["comparisons"] = Json::array();
  for (const ComparedPolicy& row : tuning.comparisons) {
    object["comparisons"].push_back(JsonComparison(row));
  }
  object["changes"] = Json::array();
  for (const ParameterChange& change : tuning.changes) {
    if (!Trains(tuning)) break;
    object["changes"].push_back({{"parameter", change.to.name},
                                 {"from", JsonFields({&change.from, 1})[change.from.name]},
                                 {"to", JsonFields({&change.to, 1})[change.to.name]}});
  }
  object["window"] = JsonCommonScales(tuning);
  object["headroom"] = JsonHeadroom(tuning);
  object["never_finite_steps"] = tuning.hopeless_steps;
  object["steps_losing_at_every_scale"] = tuning.empty_steps;
  object["overflow_tensors"] = JsonBlame(tuning.overflow_side);
  object["underflow_tensors"] = JsonBlame(tuning.underflow_side);
  object["tensors"] = JsonTensors(tuning);
  object["notes"] = tuning.notes;
  object["config"] = JsonBlocks(tuning);
  return object;
}

}  // namespace

Json JsonTuning(const TuneResult& result) {
  const size_t steps = result.formats.empty() ? 0 : result.formats.front().steps;
  Json object = {{"objective", kTuneObjective},        {"resolution", kLossResolution},
                 {"eligibility", kTuneEligibility},    {"steps", steps},
                 {"harm_estimated", result.estimated}, {"least_stride", result.least_stride},
                 {"most_stride", result.most_stride}};
  object["formats"] = Json::array();
  for (const FormatTuning& tuning : result.formats) object["formats"].push_back(JsonFormat(tuning));
  return object;
}

}  // namespace dlsim::sim
