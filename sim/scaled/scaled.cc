// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/scaled.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/scaled_codec.h"
#include "sim/base/caller.h"
#include "sim/base/named_list.h"
#include "sim/base/quantity.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// Products of matrices convert outputs of modules, parameters and gradients of outputs. Results of
// operations inside modules, what autocast keeps in float32 and gradients of parameters stay.
bool IsJudged(const TensorInfo& tensor, const std::set<std::string>& float32) {
  if (tensor.role == Role::kGrad || tensor.shape.size() < 2 || IsOfOperation(tensor.name)) {
    return false;
  }
  return !float32.contains(std::string(OutputOf(tensor.name)));
}

// Of the axis that loses more.
const ScaledStats& WorseAxis(const ScaledLoss& loss) {
  const bool second = loss.by_axis[1].stats.elements > 0 &&
                      loss.by_axis[1].stats.harm() > loss.by_axis[0].stats.harm();
  return loss.by_axis[second ? 1 : 0];
}

void AddHarm(const std::string& name, double harm, ScaledHarm& into) {
  ++into.tensors;
  into.mean += harm;  // the sum until all are there
  if (into.tensors == 1 || harm > into.worst) {
    into.worst = harm;
    into.worst_tensor = name;
  }
}

void TakeMean(ScaledHarm& harm) {
  if (harm.tensors > 0) harm.mean /= static_cast<double>(harm.tensors);
}

// What is found in one format.
struct OfFormat {
  std::map<std::string, DelayedScale> delayed;  // by tensor
  NamedList<ScaledTensor> tensors;
  std::vector<ScaledStep> steps;
};

void AddTensor(const TensorInfo& header, bool judged, const ScaledLoss& loss, size_t place,
               OfFormat& format) {
  ScaledTensor& tensor = format.tensors.Of(header.name, place, header.role, judged);
  ScaledStep& step = format.steps.back();
  const ScaledStats& worse = WorseAxis(loss);
  for (size_t axis = 0; axis < 2; ++axis) tensor.by_axis[axis].Merge(loss.by_axis[axis].stats);
  const bool first = tensor.scales.max == 0;
  tensor.scales.min =
      first ? worse.min_scale : std::min<double>(tensor.scales.min, worse.min_scale);
  tensor.scales.max = std::max<double>(tensor.scales.max, worse.max_scale);
  tensor.scales.final = worse.min_scale;
  const uint64_t clipped = std::max(loss.by_axis[0].stats.overflow, loss.by_axis[1].stats.overflow);
  if (clipped > 0) {
    ++tensor.clipped_steps;
    if (!tensor.first_clipped_step) tensor.first_clipped_step = step.step;
  }
  if (worse.stats.sum_of_squares == 0) return;
  const double harm = worse.stats.harm();
  tensor.harm.Add(harm);
  tensor.channel_harm.Add(worse.mean_channel_harm);
  tensor.worst_channel_harm = std::max(tensor.worst_channel_harm, worse.worst_channel_harm);
  if (!judged) return;
  step.clipped += clipped;
  AddHarm(tensor.name, harm, IsForward(tensor.role) ? step.forward : step.backward);
}

void AddStep(const Step& step, std::span<const NamedScaledFormat> formats,
             const ScaledObserver& observer, std::vector<OfFormat>& of_formats) {
  const std::set<std::string> float32 = step.Listed(kAutocastFloat32Key);
  const auto scale = [&](size_t f, const std::string& tensor) -> std::optional<float> {
    if (!formats[f].format.delayed) return std::nullopt;
    const auto delayed = of_formats[f].delayed.find(tensor);
    return delayed == of_formats[f].delayed.end() ? 1 : delayed->second.scale();
  };
  const std::vector<std::vector<ScaledLoss>> losses = step.MeasureScaled(formats, scale);
  const TensorSpan tensors = {step.tables().tensors, {}};
  for (size_t f = 0; f < formats.size(); ++f) {
    const ScaledFormat& format = formats[f].format;
    OfFormat& of = of_formats[f];
    of.steps.push_back({.step = step.number(), .forward = {}, .backward = {}});
    for (size_t t = 0; t < tensors.size(); ++t) {
      const ScaledLoss& loss = losses[f][t];
      const bool judged = IsJudged(tensors[t], float32);
      AddTensor(tensors[t], judged, loss, t, of);
      if (observer) observer({formats[f].name, step.number(), tensors[t], judged, loss.by_axis});
      if (!format.delayed) continue;
      const TensorStats& stats = loss.by_axis[0].stats;  // of NaN no magnitude is taken
      of.delayed.try_emplace(tensors[t].name, format, ElementOf(format, tensors[t].role))
          .first->second.Advance(stats.inf > 0 ? std::numeric_limits<float>::infinity()
                                               : stats.absmax);
    }
    TakeMean(of.steps.back().forward);
    TakeMean(of.steps.back().backward);
  }
}

bool TooMany(size_t failures, size_t steps) {
  return failures > MostLost(steps) || (steps == 1 && failures == 1);
}

}  // namespace

DelayedScale::DelayedScale(const ScaledFormat& format, const Format& element)
    : format_(format), element_(element), history_(format.delayed->history) {}

void DelayedScale::Advance(float largest) {
  history_.front() = largest;
  const bool newest = format_.delayed->decides == FromHistory::kMostRecent;
  const float decides = newest ? largest : *std::ranges::max_element(history_);
  if (decides > 0 && std::isfinite(decides)) scale_ = ScaleFor(format_, element_, decides);
  std::rotate(history_.begin(), history_.begin() + 1, history_.end());
  history_.front() = 0;
}

size_t ScaledAdvice::ForwardFailures() const {
  return static_cast<size_t>(std::ranges::count_if(
      steps, [](const ScaledStep& step) { return step.forward.worst > kScaledForwardFails; }));
}

size_t ScaledAdvice::BackwardFailures(double limit) const {
  return static_cast<size_t>(std::ranges::count_if(
      steps, [&](const ScaledStep& step) { return step.backward.mean > limit; }));
}

bool ScaledAdvice::FailsInForward() const { return TooMany(ForwardFailures(), steps.size()); }
bool ScaledAdvice::FailsInBackward(double limit) const {
  return TooMany(BackwardFailures(limit), steps.size());
}

bool Answers(const SourceFacts& facts, const ScaledFormat& format) {
  if (!facts.profile) return true;
  return std::ranges::count(facts.profile->settings.scaled, format, &NamedScaledFormat::format) > 0;
}

void RequireAnswers(const SourceFacts& facts, std::span<const NamedScaledFormat> formats) {
  for (const NamedScaledFormat& format : formats) {
    if (Answers(facts, format.format)) continue;
    std::string held;
    for (const NamedScaledFormat& one : facts.profile->settings.scaled) held += one.name + ", ";
    throw InputError("--format", "the profile does not hold " + format.name,
                     held.empty() ? "a trace" : held + "or a trace");
  }
}

std::vector<ScaledAdvice> ReplayScaled(const StepSource& source,
                                       std::span<const NamedScaledFormat> formats,
                                       const ScaledObserver& observer) {
  RequireAnswers(source.facts, formats);
  // Steps without values hold what is lost in formats whose scales follow from the step.
  std::vector<NamedScaledFormat> held(formats.begin(), formats.end());
  std::erase_if(held, [](const NamedScaledFormat& one) { return one.format.delayed.has_value(); });
  StepOptions options;
  options.scaled = held;
  std::vector<OfFormat> of_formats(formats.size());
  Progress progress(source.step_count);
  for (size_t i = 0; i < source.step_count; ++i) {
    progress.Update(i);
    std::unique_ptr<Step> step = source.describe(i);
    if (step->recorded() == nullptr) step = source.load(i, options);
    AddStep(*step, formats, observer, of_formats);
  }
  std::vector<ScaledAdvice> advice;
  for (size_t f = 0; f < formats.size(); ++f) {
    ScaledAdvice& of = advice.emplace_back();
    of.format = formats[f].name;
    of.row = formats[f].format;
    of.steps = std::move(of_formats[f].steps);
    of.tensors = of_formats[f].tensors.Take();
    for (const ScaledTensor& tensor : of.tensors) {
      if (tensor.judged && tensor.harm.steps > 0) of.looked_at.insert(tensor.role);
    }
  }
  return advice;
}

// What is said of it, and its results.

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

// Whether scales follow from the steps before, and some of those were not recorded.
bool HasGaps(const ScaledAdvice& format) {
  if (!format.row.delayed) return false;
  return std::ranges::adjacent_find(format.steps, [](const ScaledStep& a, const ScaledStep& b) {
           return b.step != a.step + 1;
         }) != format.steps.end();
}

bool IsJudged(const ScaledAdvice& format) { return !format.looked_at.empty() && !HasGaps(format); }

}  // namespace

HarmOverSteps BackwardHarm(const ScaledAdvice& format) {
  return OverSteps(format, &ScaledStep::backward);
}

Verdict VerdictOn(const ScaledAdvice& format) {
  if (!IsJudged(format)) return Verdict::kOverflows;
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

namespace {

// The figures of one pass; nothing if none of it was recorded.
std::optional<double> MeanHarm(const ScaledAdvice& format, Side side) {
  const HarmOverSteps harm = OverSteps(format, side);
  return IsJudged(format) && harm.steps > 0 ? std::optional(harm.mean()) : std::nullopt;
}

std::optional<double> WorstHarm(const ScaledAdvice& format, Side side) {
  if (!MeanHarm(format, side)) return std::nullopt;
  return (WorstStep(format, side, &ScaledHarm::worst).*side).worst;
}

}  // namespace

std::vector<Figure> ScaledFigures(const ScaledAdvice& format) {
  uint64_t clipped = 0;
  for (const ScaledStep& step : format.steps) clipped += step.clipped;
  const auto if_judged = [&](uint64_t count) {
    return IsJudged(format) ? std::optional(static_cast<double>(count)) : std::nullopt;
  };
  return {{"forward_failures", if_judged(format.ForwardFailures())},
          {"backward_failures", if_judged(format.BackwardFailures())},
          {"forward_harm", MeanHarm(format, &ScaledStep::forward)},
          {"worst_forward_harm", WorstHarm(format, &ScaledStep::forward)},
          {"backward_harm", MeanHarm(format, &ScaledStep::backward)},
          {"worst_backward_harm", WorstHarm(format, &ScaledStep::backward)},
          {"clipped", if_judged(clipped)}};
}

constexpr bool IsNone(const ScaledHarm& harm) { return harm.tensors == 0; }

inline void Rows(const ScaledHarm& of, RowSink& row) {
  row("mean_harm", of.mean, "mean over the judged tensors of the pass");
  row("worst_harm", of.worst, "the largest of a tensor");
  row("worst_harm_tensor", of.worst_tensor, "its name");
  row("tensors", of.tensors, "that count");
}

inline void Rows(const ScaledStep& of, RowSink& row) {
  row("step", of.step, "recorded step number");
  row("forward", of.forward, "null without such tensors");
  row("backward", of.backward, "null without such tensors");
  row("clipped", of.clipped, "elements of judged tensors that are clipped");
}

namespace {

std::optional<double> IfNotZero(const ScaledTensor& tensor, double harm) {
  return tensor.harm.steps > 0 ? std::optional(harm) : std::nullopt;
}

void ScaledFormatRows(const ScaledFormat& of, RowSink& row) {
  row("name", of.name, "of the format without its parameters");
  row("forward_elements", ElementName(of.forward),
      "format of the elements of weights and activations");
  row("backward_elements", ElementName(of.backward), "format of the elements of gradients");
  row("sharing", of.sharing, "what has one scale: a `tensor`, a `row` of a matrix, or a `block`");
  row("block", of.sharing == Sharing::kBlock ? std::optional(of.block) : std::nullopt,
      "elements of a block, or null");
  row("scale_type", of.scale, "how a scale is stored: `float32`, `e8m0` or `e4m3`");
  row("rule", of.scale == ScaleType::kE8m0 ? std::optional(of.rule) : std::nullopt,
      "how a scale in `e8m0` is rounded, or null");
  row("power_of_two",
      of.scale == ScaleType::kE8m0 || (of.scale == ScaleType::kFloat32 && of.power_of_two),
      "whether scales are powers of two");
  row("margin", of.margin, "binades of head-room");
  row("history", of.delayed ? std::optional(of.delayed->history) : std::nullopt,
      "with delayed scaling: steps that decide, else null");
  row("decides", of.delayed ? std::optional(of.delayed->decides) : std::nullopt,
      "with delayed scaling: which of their magnitudes decides, else null");
}

}  // namespace

inline void Rows(const ScaledTensor& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("role", of.role, "of the tensor");
  row("judged", of.judged, "whether it is a matrix that such a training converts");
  row.Group(of.harm);
  row("mean_channel_harm", IfNotZero(of, of.channel_harm.mean()),
      "the same averaged over its channels");
  row("worst_channel_harm", IfNotZero(of, of.worst_channel_harm),
      "the largest of a channel at a step");
  row("clipped_steps", of.clipped_steps, "with elements beyond the largest of the format");
  row("first_clipped_step", of.first_clipped_step, "the first of them");
  row("scale", of.scales, "by which values were multiplied");
  const auto along = [&](const char* name, const TensorStats& stats, const char* meaning) {
    row.ObjectIf(stats.elements > 0 ? &stats : nullptr, name, meaning,
                 [](const TensorStats& counters, RowSink& axis) {
                   axis.Group(counters);
                   axis("absmax", counters.absmax, "largest finite recorded magnitude");
                 });
  };
  along("row", of.by_axis[0], "counters with blocks along rows, or the only ones");
  along("column", of.by_axis[1], "the same along columns; null of a tensor with one scale");
}

inline void Rows(const ScaledAdvice& of, RowSink& row) {
  ScaledFormatRows(of.row, row);
  row("forward_failures", of.ForwardFailures(), "steps that fail in forward");
  row("backward_failures", of.BackwardFailures(), "steps that fail in backward");
  row("steps", of.steps, "one object per step");
  row("tensors", of.tensors, "one object per tensor, over all steps");
}

TellRows RowsOf(const ScaledAdvice& format) {
  return [&format](RowSink& row) { Rows(format, row); };
}

namespace {

// One row of CSV: a tensor along one axis.
void CsvRows(const std::string& format, int64_t step, const TensorInfo& tensor, bool judged,
             size_t axis, const ScaledStats& stats, RowSink& row) {
  row("format", format, "name");
  row("step", step, "recorded step number");
  row("tensor", tensor.name, "name as recorded");
  row("role", tensor.role, "of the tensor");
  row("judged", judged, "0 or 1");
  row("axis", axis == 0 ? "row" : "column",
      "of the blocks; a tensor with one scale has `row` only");
  row("min_scale", stats.min_scale, "least scale by which values were multiplied");
  row("max_scale", stats.max_scale, "the largest");
  CsvCounters(stats.stats, row);
}

void CsvKeys(RowSink& row) { CsvRows("", 0, {}, false, 0, {}, row); }

}  // namespace

std::string ScaledCsvHeader() { return CsvNames(CsvKeys) + "\n"; }

std::string ScaledCsvRows(const ObservedScaled& found) {
  std::string rows;
  for (size_t axis = 0; axis < found.by_axis.size(); ++axis) {
    const ScaledStats& stats = found.by_axis[axis];
    if (axis == 1 && stats.stats.elements == 0) continue;
    rows += CsvValues([&](RowSink& row) {
      CsvRows(found.format, found.step, found.tensor, found.judged, axis, stats, row);
    });
    rows += '\n';
  }
  return rows;
}

void AddScaledKeys(std::vector<KeyTable>& tables) {
  AddKeys<ScaledAdvice>("verdict.formats[].scaled", tables);
  AddKeys("CSV of scaled formats", CsvKeys, tables);
}

}  // namespace dlsim::sim
