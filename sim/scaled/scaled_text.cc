// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/scaled_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/counter_columns.h"
#include "sim/base/csv_field.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

using Side = ScaledHarm ScaledStep::*;

bool Saw(const ScaledAdvice& format, Role role) { return format.looked_at.contains(role); }
bool SawForward(const ScaledAdvice& format) {
  return Saw(format, Role::kAct) || Saw(format, Role::kValue);
}

// Over the steps that have tensors of the side.
HarmOverSteps OverSteps(const ScaledAdvice& format, Side side) {
  HarmOverSteps harm;
  for (const ScaledStep& step : format.steps) {
    if ((step.*side).tensors > 0) harm.Add((step.*side).mean);
  }
  return harm;
}

// The step at which a side is worst by a figure of it.
const ScaledStep& WorstStep(const ScaledAdvice& format, Side side, double ScaledHarm::*figure) {
  return *std::ranges::max_element(format.steps, {},
                                   [&](const ScaledStep& step) { return (step.*side).*figure; });
}

std::string WorstText(const ScaledAdvice& format, Side side) {
  const ScaledStep& step = WorstStep(format, side, &ScaledHarm::worst);
  return fmt::format("{} {} at step {}", Printable((step.*side).worst_tensor),
                     Percent((step.*side).worst), step.step);
}

std::string SideText(const ScaledAdvice& format, std::string_view what, Side side) {
  return fmt::format("{} lose {} on average (worst: {})", what,
                     Percent(OverSteps(format, side).mean()), WorstText(format, side));
}

Json JsonHarm(const ScaledHarm& harm) {
  if (harm.tensors == 0) return Json();
  return {{"mean_harm", JsonNumber(harm.mean)},
          {"worst_harm", JsonNumber(harm.worst)},
          {"worst_harm_tensor", harm.worst_tensor},
          {"tensors", harm.tensors}};
}

Json JsonCounters(const TensorStats& stats) {
  if (stats.elements == 0) return Json();
  Json object;
  AddCounters(stats, object);
  object["absmax"] = JsonNumber(stats.absmax);
  return object;
}

Json JsonTensor(const ScaledTensor& tensor) {
  const bool zeros = tensor.harm.steps == 0;
  return {
      {"name", tensor.name},
      {"role", NameOf(tensor.role)},
      {"judged", tensor.judged},
      {"mean_harm", zeros ? Json() : JsonNumber(tensor.harm.mean())},
      {"worst_harm", zeros ? Json() : JsonNumber(tensor.harm.worst)},
      {"mean_channel_harm", zeros ? Json() : JsonNumber(tensor.channel_harm.mean())},
      {"worst_channel_harm", zeros ? Json() : JsonNumber(tensor.worst_channel_harm)},
      {"clipped_steps", tensor.clipped_steps},
      {"first_clipped_step", tensor.first_clipped_step ? Json(*tensor.first_clipped_step) : Json()},
      {"scale",
       {{"min", JsonNumber(tensor.scales.min)},
        {"max", JsonNumber(tensor.scales.max)},
        {"final", JsonNumber(tensor.scales.final)}}},
      {"row", JsonCounters(tensor.by_axis[0])},
      {"column", JsonCounters(tensor.by_axis[1])}};
}

// Whether scales follow from the steps before, and some of those were not recorded.
bool HasGaps(const ScaledAdvice& format) {
  if (!format.row.delayed) return false;
  return std::ranges::adjacent_find(format.steps, [](const ScaledStep& a, const ScaledStep& b) {
           return b.step != a.step + 1;
         }) != format.steps.end();
}

}  // namespace

HarmOverSteps BackwardHarm(const ScaledAdvice& format) {
  return OverSteps(format, &ScaledStep::backward);
}

Verdict VerdictOn(const ScaledAdvice& format) {
  if (format.looked_at.empty() || HasGaps(format)) return Verdict::kOverflows;
  if (format.FailsInForward()) return Verdict::kFailsInForward;
  return format.FailsInBackward(kScaledBackwardWorse) ? Verdict::kNoScaleIsSafe : Verdict::kAsIs;
}

std::string ScaledSentence(const ScaledAdvice& format) {
  if (format.looked_at.empty()) {
    return "cannot be judged: no matrices of activations, of their gradients or of parameters were "
           "recorded.";
  }
  if (HasGaps(format)) {
    return "cannot be judged: its scales follow from the steps before, and not all were recorded.";
  }
  if (format.FailsInForward()) {
    return fmt::format("fails in forward: {}; tensors lose more than half at {} of {}.",
                       WorstText(format, &ScaledStep::forward), format.ForwardFailures(),
                       Counted(format.steps.size(), "step"));
  }
  if (format.FailsInBackward()) {
    return fmt::format("fails in backward: {}; more than {} at {} of {}.",
                       SideText(format, "gradients of activations", &ScaledStep::backward),
                       Percent(kScaledBackwardFails), format.BackwardFailures(),
                       Counted(format.steps.size(), "step"));
  }
  const bool forward = SawForward(format), backward = Saw(format, Role::kActGrad);
  const bool worse = format.FailsInBackward(kScaledBackwardWorse);
  std::string text = worse ? "trains worse than float32" : "trains";
  if (!forward) text += " as far as gradients show";
  if (!backward) text += " as far as the forward pass shows";
  text += ": ";
  if (forward) text += SideText(format, "forward values", &ScaledStep::forward);
  if (forward && backward) text += ", ";
  if (backward) text += SideText(format, "gradients of activations", &ScaledStep::backward);
  return text + ".";
}

std::string ScaledBasis(const ScaledAdvice& format) {
  std::vector<std::string> seen;
  if (Saw(format, Role::kAct)) seen.push_back("outputs of modules");
  if (Saw(format, Role::kValue)) seen.push_back("parameters");
  if (Saw(format, Role::kActGrad)) seen.push_back("gradients of activations");
  std::string text = "Based on ";
  for (size_t i = 0; i < seen.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == seen.size() ? " and " : ", ") + seen[i];
  }
  if (seen.empty()) text += "nothing that such a training converts";
  return text + fmt::format(" of {}.", Counted(format.steps.size(), "step"));
}

std::string FormatScaledDetails(std::span<const ScaledAdvice> formats, size_t top) {
  if (formats.empty()) return "";
  std::vector<TableRow> rows = {
      {"format", "forward harm", "worst step", "backward harm", "worst step", "steps that fail"}};
  for (const ScaledAdvice& format : formats) {
    TableRow row = {format.format};
    for (const Side side : {&ScaledStep::forward, &ScaledStep::backward}) {
      const HarmOverSteps harm = OverSteps(format, side);
      row.push_back(harm.steps == 0 ? "-" : Percent(harm.mean()));
      row.push_back(harm.steps == 0 ? "-" : Percent(harm.worst));
    }
    row.push_back(fmt::format("{}/{}", format.ForwardFailures() + format.BackwardFailures(),
                              format.steps.size()));
    rows.push_back(std::move(row));
  }
  std::string text = FormatTable(rows);
  for (const ScaledAdvice& format : formats) {
    std::vector<ScaledTensor> tensors = format.tensors;
    std::erase_if(tensors, [](const ScaledTensor& tensor) { return !tensor.judged; });
    std::ranges::stable_sort(tensors, std::greater(),
                             [](const ScaledTensor& tensor) { return tensor.harm.mean(); });
    std::vector<TableRow> worst = {
        {format.format + ": lose most", "mean harm", "worst", "by channel", "steps clipped"}};
    for (size_t i = 0; i < std::min(top, tensors.size()); ++i) {
      const ScaledTensor& tensor = tensors[i];
      worst.push_back({Printable(tensor.name), Percent(tensor.harm.mean()),
                       Percent(tensor.harm.worst), Percent(tensor.channel_harm.mean()),
                       std::to_string(tensor.clipped_steps)});
    }
    if (worst.size() > 1) text += FormatTable(worst) + MoreRows(worst.size() - 1, tensors.size());
  }
  return text;
}

Json ScaledFigures(const ScaledAdvice& format) {
  Json figures = {{"forward_failures", format.ForwardFailures()},
                  {"backward_failures", format.BackwardFailures()}};
  const bool judged = !format.looked_at.empty() && !HasGaps(format);
  for (const auto& [name, side] :
       {std::pair("forward", &ScaledStep::forward), std::pair("backward", &ScaledStep::backward)}) {
    const HarmOverSteps harm = OverSteps(format, side);
    const bool has = judged && harm.steps > 0;
    const std::string suffix = std::string(name) + "_harm";
    figures[suffix] = has ? JsonNumber(harm.mean()) : Json();
    figures["worst_" + suffix] =
        has ? JsonNumber((WorstStep(format, side, &ScaledHarm::worst).*side).worst) : Json();
  }
  uint64_t clipped = 0;
  for (const ScaledStep& step : format.steps) clipped += step.clipped;
  figures["clipped"] = clipped;
  for (Json& figure : figures) {
    if (!judged) figure = Json();
  }
  return figures;
}

Json JsonScaled(const ScaledAdvice& format) {
  const ScaledFormat& row = format.row;
  Json object = {{"name", row.name},
                 {"forward_elements", ElementName(row.forward)},
                 {"backward_elements", ElementName(row.backward)},
                 {"sharing", NameOf(row.sharing)},
                 {"block", row.sharing == Sharing::kBlock ? Json(row.block) : Json()},
                 {"scale_type", NameOf(row.scale)},
                 {"rule", row.scale == ScaleType::kE8m0 ? Json(NameOf(row.rule)) : Json()},
                 {"power_of_two", row.scale != ScaleType::kFp8 &&
                                      (row.power_of_two || row.scale == ScaleType::kE8m0)},
                 {"margin", row.margin},
                 {"history", row.delayed ? Json(row.delayed->history) : Json()},
                 {"decides", row.delayed ? Json(NameOf(row.delayed->decides)) : Json()},
                 {"forward_failures", format.ForwardFailures()},
                 {"backward_failures", format.BackwardFailures()},
                 {"steps", Json::array()},
                 {"tensors", Json::array()}};
  for (const ScaledStep& step : format.steps) {
    object["steps"].push_back({{"step", step.step},
                               {"forward", JsonHarm(step.forward)},
                               {"backward", JsonHarm(step.backward)},
                               {"clipped", step.clipped}});
  }
  for (const ScaledTensor& tensor : format.tensors) {
    object["tensors"].push_back(JsonTensor(tensor));
  }
  return object;
}

std::string ScaledCsvHeader() {
  std::string header = "format,step,tensor,role,judged,axis,min_scale,max_scale";
  ForEachColumn([&](auto, auto columns) {
    if constexpr (columns.kInCsv) header.append(",").append(columns.kNames.csv);
  });
  return header + "\n";
}

std::string ScaledCsvRows(const ObservedScaled& found) {
  std::string rows;
  for (size_t axis = 0; axis < found.by_axis.size(); ++axis) {
    const ScaledStats& stats = found.by_axis[axis];
    if (axis == 1 && stats.stats.elements == 0) continue;
    rows += fmt::format("{},{},{},{},{},{},{},{}", CsvField(found.format), found.step,
                        CsvField(found.tensor.name), NameOf(found.tensor.role),
                        static_cast<int>(found.judged), axis == 0 ? "row" : "column",
                        WithoutNanSign(stats.min_scale), WithoutNanSign(stats.max_scale));
    ForEachColumn([&](auto counter, auto columns) {
      if constexpr (columns.kInCsv) {
        fmt::format_to(std::back_inserter(rows), ",{}", std::invoke(counter.kRow.of, stats.stats));
      }
    });
    rows += "\n";
  }
  return rows;
}

}  // namespace dlsim::sim
