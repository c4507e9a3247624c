// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/diff/diff.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

constexpr size_t kNamed = 3;  // unmatched tensors in a line

std::string Number(double value) { return fmt::format("{:.3g}", WithoutNanSign(value)); }

// A figure between 0 and 1 whose distance to 1 matters.
std::string CosineText(double cosine) {
  const double to_one = 1 - cosine;
  if (to_one == 0) return "1";
  return to_one < 0.001 ? fmt::format("1-{:.1e}", to_one)
                        : fmt::format("{:.4f}", WithoutNanSign(cosine));
}

double LargestDifference(std::span<const StepDiff> steps) {
  double largest = 0;
  for (const StepDiff& step : steps) largest = std::max(largest, step.difference);
  return largest;
}

const char* MeasureName(const Diff& diff) {
  return diff.has_values() ? "relative difference" : "difference of histograms";
}

std::string SameLine(const Diff& diff) {
  const size_t steps = diff.steps.size();
  const std::string all = (steps == 1 ? "the one step" : fmt::format("all {} steps", steps)) +
                          " of " + Counted(diff.tensors.items().size(), "tensor");
  if (LargestDifference(diff.steps) == 0) {
    return fmt::format("Equal in {}: every {} is the same.", all,
                       diff.has_values() ? "number" : "count");
  }
  const TensorDiff& worst = *diff.WorstFirst().front();
  return fmt::format(
      "No divergence in {}: none is above {}; the largest {} is {}, at step {} in {}.", all,
      Number(diff.threshold), MeasureName(diff), Number(worst.difference()), worst.worst_step,
      Printable(worst.name));
}

// What an infinite difference is about.
std::string DifferenceText(const Diff& diff, const StepDiff& step) {
  if (step.nonfinite_differences > 0) {
    return Counted(step.nonfinite_differences, "element") +
           " infinite or NaN in one run but not the other";
  }
  if (std::isinf(step.difference)) return "all zero in one run only";
  return std::string(MeasureName(diff)) + " " + Number(step.difference);
}

// How well the steps before the first one that parts agree.
std::string AgreementBefore(const Diff& diff, const StepDiff& first) {
  const auto before = static_cast<size_t>(&first - diff.steps.data());
  if (before == 0) return "this is the first step";
  const double largest = LargestDifference(std::span(diff.steps).first(before));
  const bool one = before == 1;
  return (one ? "the step" : fmt::format("the {} steps", before)) + " before " +
         (largest == 0 ? (one ? "is equal" : "are equal")
                       : (one ? "agrees to " : "agree to ") + Number(largest));
}

std::string ExtentLine(const Diff& diff) {
  const DiffSummary summary = Summarize(diff);
  return fmt::format("Above {}: {} of {}, {} of {}.", Number(diff.threshold), summary.steps_beyond,
                     Counted(summary.steps, "step"), summary.tensors_beyond,
                     Counted(summary.tensors, "tensor"));
}

std::string StepList(std::span<const int64_t> steps) {
  if (steps.empty()) return "";
  if (steps.size() == 1) return fmt::format("step {}", steps.front());
  return fmt::format("{} steps ({} to {})", steps.size(), steps.front(), steps.back());
}

std::string UnmatchedNames(const Diff& diff, Mismatch why) {
  std::string names;
  size_t count = 0;
  for (const UnmatchedDiff& tensor : diff.unmatched.items()) {
    if (tensor.first.why != why || count++ >= kNamed) continue;
    names += (names.empty() ? "" : ", ") + Printable(tensor.name);
  }
  return count > kNamed ? names + fmt::format(" and {} more", count - kNamed) : names;
}

std::string UnmatchedLine(const Diff& diff) {
  std::string text;
  const auto add = [&](const std::string& item, const char* where) {
    if (!item.empty()) text += (text.empty() ? "Not compared: " : "; ") + item + where;
  };
  add(StepList(diff.aligned.only_a), " only in A");
  add(StepList(diff.aligned.only_b), " only in B");
  add(UnmatchedNames(diff, Mismatch::kOnlyInA), " only in A");
  add(UnmatchedNames(diff, Mismatch::kOnlyInB), " only in B");
  add(UnmatchedNames(diff, Mismatch::kShape), " of different shapes");
  return text.empty() ? text : text + ".";
}

std::string InputLine(const char* label, const DiffRun& run) {
  const SourceFacts& facts = run.source.facts;
  return fmt::format("{}: {}, {}, {} ({} to {})\n", label, Printable(run.path),
                     run.profile ? "profile" : "trace", Counted(facts.steps, "step"),
                     facts.first_step, facts.last_step);
}

// A note about both runs is printed once.
std::string NoteLines(const std::vector<std::string>& of_a, const std::vector<std::string>& of_b) {
  const auto has = [](const std::vector<std::string>& notes, const std::string& note) {
    return std::ranges::find(notes, note) != notes.end();
  };
  std::string text;
  for (const std::string& note : of_a) {
    text += Wrap((has(of_b, note) ? "note: A and B: " : "note: A: ") + note);
  }
  for (const std::string& note : of_b) {
    if (!has(of_a, note)) text += Wrap("note: B: " + note);
  }
  return text;
}

bool IsInsideCharacter(const std::string& text, size_t at) {
  return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;
}

// Names of one model often begin, or end, alike: both ends stay.
std::string Shortened(const std::string& name, size_t width) {
  if (name.size() <= width) return name;
  size_t begin = (width - 1) / 2, end = name.size() - (width - 2) / 2;
  while (IsInsideCharacter(name, begin)) --begin;
  while (IsInsideCharacter(name, end)) ++end;
  return name.substr(0, begin) + ".." + name.substr(end);
}

// Shortens the first column until the table fits; the others are numbers.
std::string FittingTable(std::vector<TableRow> rows) {
  constexpr size_t kLeast = 16;
  const std::string table = FormatTable(rows);
  size_t width = 0, names = 0, begin = 0;
  for (size_t end = 0; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    width = std::max(width, end - begin);
  }
  if (width <= kTerminalColumns) return table;
  for (const TableRow& row : rows) names = std::max(names, row.front().size());
  const size_t over = width - kTerminalColumns;
  for (TableRow& row : rows) {
    row.front() = Shortened(row.front(), names > over + kLeast ? names - over : kLeast);
  }
  return FormatTable(rows);
}

// The ratio that is farthest from 1.
std::string RatioText(const Extent& ratio) {
  const double low = *ratio.low, high = *ratio.high;
  const bool low_is_farther = std::fabs(std::log(low)) > std::fabs(std::log(high));
  return fmt::format("{:.4g}", WithoutNanSign(low_is_farther ? low : high));
}

std::string TensorTable(const Diff& diff, size_t top) {
  const bool values = diff.has_values();
  std::vector<TableRow> rows = {
      {"worst first", "differs", "step", values ? "cosine" : "binades", "norm B/A", "above"}};
  const std::vector<const TensorDiff*> order = diff.WorstFirst();
  const size_t shown = std::min<size_t>(top, order.size());
  for (const TensorDiff* const tensor : std::span(order).first(shown)) {
    const Extents& figures = tensor->figures;
    rows.push_back(
        {Printable(tensor->name), Number(tensor->difference()), std::to_string(tensor->worst_step),
         values ? CosineText(*figures[kCosine].low) : Number(*figures[kHistogramDistance].high),
         RatioText(figures[kNormRatio]),
         fmt::format("{}/{}", tensor->steps_beyond, tensor->steps)});
  }
  return FittingTable(std::move(rows)) + MoreRows(shown, order.size()) + "\n" +
         Wrap(
             std::string("  differs: the largest difference, at that step; ") +
             (values ? "cosine: the smallest; " : "binades: the largest distance of histograms; ") +
             "norm B/A: the farthest from 1; above: steps above the threshold.");
}

// The worst tensor of a layer.
struct LayerDiff {
  std::string name;
  const TensorDiff* worst = nullptr;
  size_t tensors = 0, tensors_beyond = 0;
};

std::string LayerTable(const Diff& diff) {
  NamedList<LayerDiff> layers;
  for (const TensorDiff& tensor : diff.tensors.items()) {
    LayerDiff& layer =
        layers.Of(std::string(LayerOf(tensor.name)), layers.items().size() - 1, &tensor);
    ++layer.tensors;
    if (tensor.difference() > layer.worst->difference()) layer.worst = &tensor;
    layer.tensors_beyond += tensor.steps_beyond > 0;
  }
  std::vector<TableRow> rows = {{"layer", "differs", "step", "tensors above"}};
  for (const LayerDiff& layer : layers.items()) {
    rows.push_back({Printable(layer.name), Number(layer.worst->difference()),
                    std::to_string(layer.worst->worst_step),
                    fmt::format("{}/{}", layer.tensors_beyond, layer.tensors)});
  }
  return "\n" + FittingTable(std::move(rows));
}

std::string StepTable(const Diff& diff) {
  std::vector<TableRow> rows = {{"step", "of B", "difference", "above", "worst tensor"}};
  for (const StepDiff& step : diff.steps) {
    const bool empty = step.tensors == 0;
    const std::string name = empty ? "-" : Printable(diff.tensors.items()[step.tensor].name);
    rows.push_back({std::to_string(step.step_a), std::to_string(step.step_b),
                    empty ? "-" : Number(step.difference),
                    fmt::format("{}/{}", step.tensors_beyond, step.tensors),
                    Shortened(name, kTerminalColumns / 2 - 2)});
  }
  return "\n" + FormatTable(rows);
}

}  // namespace

std::vector<std::string> DiffLines(const Diff& diff) {
  std::vector<std::string> lines;
  if (const StepDiff* const first = diff.FirstBeyond()) {
    lines = {fmt::format("They diverge at step {} in {}: {}; {}.", first->step_a,
                         Printable(diff.tensors.items()[first->tensor].name),
                         DifferenceText(diff, *first), AgreementBefore(diff, *first)),
             ExtentLine(diff)};
  } else {
    lines = {SameLine(diff)};
  }
  const std::string unmatched = UnmatchedLine(diff);
  if (!unmatched.empty()) lines.push_back(unmatched);
  return lines;
}

std::string FormatDiff(const Diff& diff, const DiffReportOptions& options) {
  std::string text;
  for (const std::string& line : DiffLines(diff)) text += Wrap(line);
  text += "\n" + InputLine("A", diff.a) + InputLine("B", diff.b);
  text += NoteLines(diff.a.source.facts.notes, diff.b.source.facts.notes);
  if (LargestDifference(diff.steps) > 0) text += "\n" + TensorTable(diff, options.top);
  if (options.by_layer) text += LayerTable(diff);
  if (options.details) text += StepTable(diff);
  return text;
}

}  // namespace dlsim::sim
