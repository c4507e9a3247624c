// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/tune_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/advice/config_block_text.h"
#include "sim/advice/tuning.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

// What is advised; JSON has other words. That scale 1 is safe is no advice to train without one:
// what becomes zero in a channel of a tensor does not show, and a higher start loses nothing.
std::string AdvisedText(const FormatTuning& tuning) {
  const double start = tuning.choices.front().parameters.init;
  if (tuning.verdict == Verdict::kAsIs && start > 1) {
    return "start a loss scaler at " + ScaleText(start);
  }
  const bool fixed = tuning.verdict == Verdict::kWithScale && tuning.scale;
  return fixed ? "a fixed loss scale is enough" : std::string(ScalingAdvised(tuning));
}

// A policy's parameters as KEY VALUE.
std::string ParametersText(const std::vector<NamedValue>& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters) {
    const auto* scale = std::get_if<double>(&value);
    text +=
        (text.empty() ? "" : ", ") + name + " " +
        ParameterText(name, scale ? ScaleNumber(*scale) : std::to_string(std::get<int64_t>(value)));
  }
  return text;
}

std::string Recommendation(const FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  std::string text =
      fmt::format("\n{}: {}\n  {}\n", tuning.format, AdvisedText(tuning), tuning.reason);
  if (!Trains(tuning)) return text;
  text += fmt::format("  {}: {}\n", choice.policy->name, ParametersText(choice.named));
  return text;
}

// What to change in the policy that is used today.
std::string Changes(const FormatTuning& tuning) {
  std::string text;
  const auto value = [](const NamedValue& field) {
    return ParameterText(field.name, DumpJson(JsonFields({&field, 1})[field.name]));
  };
  for (const ParameterChange& change : tuning.changes) {
    text += fmt::format("{} {} from {} to {}", text.empty() ? "" : ",", change.to.name,
                        value(change.from), value(change.to));
  }
  const ComparedPolicy& current = tuning.comparisons.back();
  if (current.policy != tuning.choices.front().policy->name) {
    return fmt::format("  {}: its policy, {}, is compared but not tuned (--details)\n",
                       current.label, current.policy);
  }
  if (text.empty()) return fmt::format("  {}: nothing to change\n", current.label);
  return fmt::format("  change in {}:{}\n", current.label, text);
}

std::string Losses(const FormatTuning& tuning) {
  std::vector<TableRow> rows = {
      {"loss of the steps", "gradient lost", "skipped", "before first applied", "final scale"}};
  const auto count = [](uint64_t steps) { return std::to_string(steps); };
  const auto add = [&](const std::string& what, const PolicyScore& score) {
    rows.push_back({what, Percent(score.mean_loss), count(score.skipped), count(score.first_skips),
                    ScaleText(score.final_scale)});
  };
  for (const PolicyChoice& choice : tuning.choices) {
    const bool recommended = &choice == &tuning.choices.front();
    add((recommended ? "recommended " : "tuned ") + std::string(choice.policy->name), choice.score);
  }
  const std::string fixed_scale = ScaleText(tuning.fixed_scale);
  rows.push_back({"fixed scale " + fixed_scale, Percent(tuning.fixed.mean_loss),
                  count(tuning.fixed.skipped), "", fixed_scale});
  for (const ComparedPolicy& row : tuning.comparisons) {
    if (row.refusal.empty()) add(row.label, row.score);
  }
  rows.push_back({"best power of two for each step", Percent(tuning.least_loss), "", "", ""});
  constexpr std::string_view kDispensable[] = {"before first applied", "final scale"};
  return "\n" + FormatTable(rows, kDispensable);
}

std::string HowGood(const FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  if (choice.optimal) return "  no choice loses less on this trace\n";
  return fmt::format(
      "  at best {} less could be lost: with the best power of two for each step, in hindsight\n",
      Percent(choice.score.mean_loss - tuning.least_loss));
}

std::string WindowText(const FormatTuning& tuning) {
  const CommonScales window = CommonScalesOf(tuning.windows);
  if (tuning.hopeless_steps == tuning.steps) return "";
  const std::string low = ScaleText(window.low), high = ScaleText(window.high);
  if (!window.empty()) {
    const std::string size = fmt::format("{:.1f}", std::log2(window.high / window.low));
    return fmt::format(
        "  loss scales from {}{} to {} are safe at every step that can be finite ({}{} binades)\n",
        low, window.low_open ? " (or lower)" : "", high, window.low_open ? "at least " : "", size);
  }
  return fmt::format(
      "  no loss scale is safe at all steps: step {} overflows above {}, step {} loses too much "
      "below {}\n",
      window.high_step, high, window.low_step, low);
}

std::string HeadroomText(const FormatTuning& tuning) {
  const Headroom room = HeadroomOf(tuning.windows);
  if (room.median == 0) return "";
  return fmt::format(
      "  largest finite loss scale of each step: lowest {}, 5 % {}, median {}, last {}; lowest of "
      "the first half {}, of the second {}; range {:.1f} binades\n",
      ScaleText(room.min), ScaleText(room.fifth_percentile), ScaleText(room.median),
      ScaleText(room.last), ScaleText(room.min_first_half), ScaleText(room.min_second_half),
      room.spread_binades);
}

std::string Confidence(const FormatTuning& tuning) {
  const size_t steps = tuning.steps, finite = steps - tuning.hopeless_steps;
  const uint64_t skipped = tuning.choices.front().score.skipped - tuning.hopeless_steps;
  std::string text =
      fmt::format("  evidence: {}, of which {} can be finite", Counted(steps, "step"), finite);
  if (skipped == 0 && finite > 0) {
    text += fmt::format("; none overflowed: with 95 % confidence, fewer than 1 step in {:.0f} does",
                        std::fmax(1, static_cast<double>(finite) / 3));
  } else if (skipped > 0) {
    text += fmt::format("; {} of those skipped", skipped);
  }
  return text + "\n";
}

std::string WorstTensors(const FormatTuning& tuning, size_t top) {
  std::vector<ReplayTensor> tensors;
  for (const ReplayTensor& tensor : tuning.replayed) {
    if (tensor.role == Role::kGrad && tensor.stats.underflow > 0) tensors.push_back(tensor);
  }
  if (tensors.empty() || top == 0) return "";
  std::ranges::stable_sort(tensors, std::greater(),
                           [](const ReplayTensor& tensor) { return tensor.harm.worst; });
  tensors.resize(std::min(top, tensors.size()));
  std::vector<TableRow> rows = {
      {"lose most at the recommendation", "worst harm", "mean harm", "underflow", "absmax"}};
  for (const ReplayTensor& tensor : tensors) {
    rows.push_back({Printable(tensor.name), Percent(tensor.harm.worst), Percent(tensor.harm.mean()),
                    Percent(tensor.stats.underflow_fraction()),
                    fmt::format("{:.2e}", tensor.stats.absmax)});
  }
  return FormatTable(rows);
}

std::string BlameText(const FormatTuning& tuning, size_t top) {
  std::string text;
  const auto list = [&](const std::vector<ReplayTensor>& tensors, const std::string& title,
                        const auto& describe) {
    if (tensors.empty()) return;
    text += "  " + title + ":";
    for (size_t i = 0; i < std::min(std::max<size_t>(top, 1), tensors.size()); ++i) {
      text += (i == 0 ? " " : ", ") + Printable(tensors[i].name) + " " + describe(tensors[i]);
    }
    text += "\n";
  };
  list(tuning.overflow_side, "overflow first (largest magnitude)",
       [](const ReplayTensor& tensor) { return fmt::format("({:.2e})", tensor.stats.absmax); });
  list(tuning.underflow_side, "lose most to underflow (harm at a step)",
       [](const ReplayTensor& tensor) { return "(" + Percent(tensor.harm.worst) + ")"; });
  std::vector<std::string> names;
  for (const StepWindow& step : tuning.windows) {
    const bool is_new = std::ranges::count(names, step.high_tensor) == 0;
    if (step.hopeless && !step.high_tensor.empty() && is_new) names.push_back(step.high_tensor);
  }
  if (names.size() > std::max<size_t>(top, 1)) names.resize(std::max<size_t>(top, 1));
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "  Inf or NaN at every scale: " : ", ") + Printable(names[i]);
  }
  return text + (names.empty() ? "" : "\n");
}

// For the stack of the user's configuration alone, if one is compared; else for the stack whose
// policy is tuned.
std::string Block(const FormatTuning& tuning, bool compares_current) {
  if (!Trains(tuning)) return "";
  const std::string_view policy =
      compares_current ? tuning.comparisons.back().policy : tuning.choices.front().policy->name;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    const std::optional<std::string> block = ConfigText(target, tuning);
    if (!block || (!policy.empty() && !IsPolicyOf(target, policy))) continue;
    return fmt::format("\n{}, {}:\n{}", tuning.format, TitleOf(target), *block);
  }
  return "";
}

// Where the blocks of other stacks are, if there is any.
std::string OtherBlocks(const TuneResult& result) {
  const bool any = std::ranges::any_of(result.formats, Trains);
  if (result.compares_current || !any) return "";
  std::string names;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return "\nFor other stacks: --emit " + names + "\n";
}

// What follows from the distance of the recorded steps for the interval; empty without a gap.
std::string StrideText(const TuneResult& result) {
  if (result.most_stride <= 1) return "";
  if (result.least_stride == result.most_stride) {
    return fmt::format(
        "only every {0}th step is recorded, and intervals count recorded steps: multiply a tuned "
        "growth interval that is shorter than the trace by {0}",
        result.least_stride);
  }
  return fmt::format(
      "the recorded steps are {} to {} steps apart, and intervals count recorded steps as if they "
      "were consecutive; training has more steps between overflows",
      result.least_stride, result.most_stride);
}

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

std::string FormatTuneReport(const TuneResult& result, size_t top, bool details) {
  std::string text;
  if (details) {
    text = fmt::format("objective: {}; differences below {:g} are ignored\nnote: {}\n",
                       kTuneObjective, kLossResolution, kTuneEligibility);
  }
  const std::string stride = StrideText(result);
  if (!stride.empty()) text += "note: " + stride + "\n";
  for (const FormatTuning& tuning : result.formats) {
    text += Recommendation(tuning);
    if (result.compares_current && Trains(tuning)) text += Changes(tuning);
    if (details) {
      text += Losses(tuning) + HowGood(tuning) + WindowText(tuning) + HeadroomText(tuning) +
              Confidence(tuning) + WorstTensors(tuning, top) + BlameText(tuning, top);
    }
    for (const std::string& note : tuning.notes) text += "  note: " + note + "\n";
  }
  for (const FormatTuning& tuning : result.formats) text += Block(tuning, result.compares_current);
  return text + OtherBlocks(result);
}

Json JsonTuning(const TuneResult& result) {
  const size_t steps = result.formats.empty() ? 0 : result.formats.front().steps;
  Json object = {{"objective", kTuneObjective},         {"resolution", kLossResolution},
                 {"eligibility", kTuneEligibility},     {"steps", steps},
                 {"least_stride", result.least_stride}, {"most_stride", result.most_stride}};
  object["formats"] = Json::array();
  for (const FormatTuning& tuning : result.formats) object["formats"].push_back(JsonFormat(tuning));
  return object;
}

}  // namespace dlsim::sim
