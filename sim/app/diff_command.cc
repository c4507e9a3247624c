// SPDX-License-Identifier: Apache-2.0
// dlsim diff: two runs of one model compared, tensor by tensor and step by step.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "sim/app/commands.h"
#include "sim/app/expectations.h"
#include "sim/app/shared_options.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/named_list.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/diff/diff.h"
#include "sim/replay/layer_name.h"
#include "sim/replay/step_sources.h"

namespace dlsim::sim {
namespace {

// What two runs come to: the first step and tensor where they part, and how far each tensor does.

// Above what runs differ in that only sum in another order, below what rounding to any 16-bit
// format changes: fp16 changes a gradient by 2e-4 of its norm.
constexpr double kDiffThreshold = 1e-4;

// One of the two runs, opened.
struct DiffRun {
  std::string path;
  std::unique_ptr<TraceReader> trace;      // this ...
  std::unique_ptr<ProfileReader> profile;  // ... or that
  StepSource source;
  std::vector<int64_t> steps;  // numbers, ascending
};

// The largest and smallest of what was added.
struct Extent {
  std::optional<double> low, high;
  void Add(double value) {
    if (!low || value < *low) low = value;
    if (!high || value > *high) high = value;
  }
};

// By DiffFigure.
using Extents = std::array<Extent, kDiffFigures>;

// One step: its worst tensor.
struct StepDiff {
  int64_t step_a = 0, step_b = 0;
  double difference = 0;               // of that tensor
  uint64_t nonfinite_differences = 0;  // the same
  size_t tensor = 0;                   // index of it; nothing to look at if tensors is 0
  size_t tensors = 0;                  // compared
  size_t tensors_beyond = 0;           // beyond the threshold
};

// One tensor over the steps.
struct TensorDiff {
  std::string name;
  Role role = Role::kGrad;
  uint64_t steps = 0, steps_beyond = 0;
  std::optional<int64_t> first_beyond = {};  // step of a
  int64_t worst_step = 0;                    // step of a with the largest difference
  uint64_t nonfinite_differences = 0;
  Extents figures = {};

  double difference() const { return *figures[kDifference].high; }
};

struct Diff {
  DiffRun a, b;
  AlignedSteps aligned = {};
  double threshold = kDiffThreshold;
  std::vector<StepDiff> steps = {};
  NamedList<TensorDiff> tensors = {};  // as they come first
  NamedList<UnmatchedTensor> unmatched = {};

  // Whether values are compared; else tables, as one of the runs is a profile.
  bool has_values() const { return a.trace != nullptr && b.trace != nullptr; }

  void Add(const ComparedStep& compared) {
    StepDiff& step = steps.emplace_back();
    step.step_a = compared.step_a;
    step.step_b = compared.step_b;
    for (const TensorDifference& found : compared.tensors) {
      const size_t place = tensors.PlaceOf(found.name, step.tensors, found.role);
      TensorDiff& tensor = tensors[place];
      const double difference = found.difference();
      if (tensor.steps++ == 0 || difference > tensor.difference()) tensor.worst_step = step.step_a;
      if (step.tensors++ == 0 || difference > step.difference) {
        step.difference = difference;
        step.nonfinite_differences = found.nonfinite_differences;
        step.tensor = place;
      }
      for (size_t f = 0; f < kDiffFigures; ++f) {
        if (found.figures[f]) tensor.figures[f].Add(*found.figures[f]);
      }
      tensor.nonfinite_differences += found.nonfinite_differences;
      if (!(difference > threshold)) continue;
      ++step.tensors_beyond;
      ++tensor.steps_beyond;
      if (!tensor.first_beyond) tensor.first_beyond = step.step_a;
    }
    for (size_t t = 0; t < compared.unmatched.size(); ++t) {
      const UnmatchedTensor& tensor = compared.unmatched[t];
      ++unmatched.Of(tensor.name, t, tensor.why, tensor.shape_a, tensor.shape_b, step.step_a).steps;
    }
  }

  // The first step with a tensor beyond the threshold; null if there is none.
  const StepDiff* FirstBeyond() const {
    const auto found =
        std::ranges::find_if(steps, [](const StepDiff& step) { return step.tensors_beyond > 0; });
    return found == steps.end() ? nullptr : &*found;
  }

  // The tensors, those with the largest difference first.
  std::vector<const TensorDiff*> WorstFirst() const {
    std::vector<const TensorDiff*> order;
    for (const TensorDiff& tensor : tensors.items()) order.push_back(&tensor);
    std::ranges::stable_sort(order, std::greater(), &TensorDiff::difference);
    return order;
  }
};

DiffRun OpenRun(const std::string& path, const TraceOptions& options) {
  DiffRun run;
  run.path = path;
  if (!ProfileReader::IsProfile(path)) {
    run.trace = std::make_unique<TraceReader>(TraceReader::Open(std::array{path}, options));
    return run;
  }
  run.profile = std::make_unique<ProfileReader>(ProfileReader::Open(path));
  RequireSameRanks(*run.profile, options.ranks);
  run.source = ProfileSteps(*run.profile, options.tensors);
  return run;
}

std::string RangeText(const DiffRun& run) {
  if (run.steps.empty()) return "none";
  return std::to_string(run.steps.front()) + " to " + std::to_string(run.steps.back());
}

// Opens two runs, each a trace or a profile, and aligns their steps. A trace that is compared with
// a profile is read as the profile was made: with its accumulation. Throws Error for a bad file, or
// without a common step.
Diff OpenDiff(const std::string& a, const std::string& b, const TraceOptions& options,
              Alignment alignment) {
  Diff diff = {.a = OpenRun(a, options), .b = OpenRun(b, options)};
  const ProfileReader* const profile = diff.a.profile ? diff.a.profile.get() : diff.b.profile.get();
  for (DiffRun* const run : {&diff.a, &diff.b}) {
    if (run->trace) {
      run->source = TraceSteps(*run->trace, profile ? profile->settings().accumulate_steps : 1);
    }
    for (size_t i = 0; i < run->source.step_count; ++i) {
      run->steps.push_back(run->source.describe(i)->number());
    }
  }
  diff.aligned = AlignSteps(diff.a.steps, diff.b.steps, alignment);
  if (!diff.aligned.pairs.empty()) return diff;
  throw Error(ErrorKind::kIncomparable, Printable(b), "no step in common",
              "steps " + RangeText(diff.a) + " as in " + Printable(a) + ", or --align index",
              RangeText(diff.b));
}

// Compares the aligned steps, adds each to the result and passes it to `visit`. Throws Error for a
// bad file.
void CompareRuns(Diff& diff, const std::function<void(const ComparedStep& step)>& visit) {
  const ProfileReader* const profile = diff.a.profile ? diff.a.profile.get() : diff.b.profile.get();
  StepOptions options;
  if (profile != nullptr) options.accumulation = profile->settings().accumulation;
  Progress progress(diff.aligned.pairs.size());
  for (const auto& [i, k] : diff.aligned.pairs) {
    progress.Update(diff.steps.size());
    ComparedStep step;
    if (diff.has_values()) {
      // What was found in files that changed meanwhile belongs to no step.
      const auto of_a = diff.a.source.describe(i), of_b = diff.b.source.describe(k);
      step = CompareSteps(*of_a->recorded(), *of_b->recorded());
      of_a->Check();
      of_b->Check();
    } else {
      step = CompareSteps(diff.a.source.load(i, options)->tables(),
                          diff.b.source.load(k, options)->tables());
    }
    diff.Add(step);
    visit(step);
  }
}

// The whole in figures; those of the tensors over all of them.
struct DiffSummary {
  size_t steps = 0, tensors = 0;  // that were compared
  size_t steps_beyond = 0, tensors_beyond = 0;
  std::optional<int64_t> first_beyond = {};
  Extents figures = {};
  uint64_t nonfinite_differences = 0;
  size_t unmatched_steps = 0, unmatched_tensors = 0;
};

DiffSummary Summarize(const Diff& diff) {
  DiffSummary summary = {.steps = diff.steps.size(),
                         .tensors = diff.tensors.items().size(),
                         .unmatched_steps = diff.aligned.only_a.size() + diff.aligned.only_b.size(),
                         .unmatched_tensors = diff.unmatched.items().size()};
  for (const StepDiff& step : diff.steps) summary.steps_beyond += step.tensors_beyond > 0;
  for (const TensorDiff& tensor : diff.tensors.items()) {
    summary.tensors_beyond += tensor.steps_beyond > 0;
    summary.nonfinite_differences += tensor.nonfinite_differences;
    for (size_t f = 0; f < kDiffFigures; ++f) {
      if (tensor.figures[f].low) summary.figures[f].Add(*tensor.figures[f].low);
      if (tensor.figures[f].high) summary.figures[f].Add(*tensor.figures[f].high);
    }
  }
  if (const StepDiff* const first = diff.FirstBeyond()) summary.first_beyond = first->step_a;
  return summary;
}

// As JSON, schema "dlsim.diff/1", and CSV.

std::vector<std::string> DiffLines(const Diff& diff);  // see the report

}  // namespace

inline void Rows(const UnmatchedTensor& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("why", of.why, "`only in a`, `only in b` or `other shape`");
  row("first_step", of.first_step, "at which it could not be compared");
  row("steps", of.steps, "how many of these there are");
  row("shape_a", of.why == Mismatch::kOnlyInB ? nullptr : &of.shape_a,
      "in a; null if it is not there");
  row("shape_b", of.why == Mismatch::kOnlyInA ? nullptr : &of.shape_b,
      "in b; null if it is not there");
}

namespace {

// The figures over tensors and steps; `whole`: with the largest difference, which tensors have
// under another name.
void ExtentRows(const Extents& of, bool whole, RowSink& row) {
  row("min_norm_ratio", of[kNormRatio].low, "over tensors and steps");
  row("max_norm_ratio", of[kNormRatio].high, "the same");
  if (whole) row("max_difference", of[kDifference].high, "the same");
  row("max_relative_difference", of[kRelativeDifference].high, "the same; null for histograms");
  row("min_cosine", of[kCosine].low, "the same; null for histograms");
  row("max_histogram_distance", of[kHistogramDistance].high, "the same; null for elements");
  row("max_zero_difference", of[kZeroDifference].high, "the same; null for elements");
}

void Rows(const DiffSummary& of, RowSink& row) {
  row("steps", of.steps, "that were compared");
  row("tensors", of.tensors, "that were compared");
  row("steps_beyond", of.steps_beyond, "of these, beyond the threshold at some tensor");
  row("tensors_beyond", of.tensors_beyond, "beyond the threshold at some step");
  row("first_step_beyond", of.first_beyond, "number of the first such step; null if none");
  ExtentRows(of.figures, true, row);
  row("nonfinite_differences", of.nonfinite_differences, "over all");
  row("unmatched_steps", of.unmatched_steps, "that could not be compared");
  row("unmatched_tensors", of.unmatched_tensors, "names that could not be compared");
}

void Rows(const TensorDiff& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("role", of.role, "`grad` or `act_grad`");
  row("steps", of.steps, "that were compared");
  row("steps_beyond", of.steps_beyond, "beyond the threshold");
  row("first_step_beyond", of.first_beyond, "null if none");
  row("difference", of.figures[kDifference].high, "the largest");
  row("worst_step", of.worst_step, "that step");
  ExtentRows(of.figures, false, row);
  row("nonfinite_differences", of.nonfinite_differences, "over the steps");
}

// A step, with its worst tensor.
void StepRows(const StepDiff& of, const Diff& diff, RowSink& row) {
  const bool none = of.tensors == 0;
  row("step", of.step_a, "recorded number in a");
  row("step_b", of.step_b, "recorded number in b");
  row("difference", none ? nullptr : &of.difference, "of the worst tensor; null without tensors");
  row("tensor", none ? nullptr : &diff.tensors.items()[of.tensor].name, "its name");
  row("tensors", of.tensors, "that were compared");
  row("tensors_beyond", of.tensors_beyond, "beyond the threshold");
}

TellRows InputRows(const DiffRun& run) { return RowsOf(run.source.facts, {&run.path, 1}); }

void DiffRows(const Diff& diff, const TellRows& options,
              std::span<const ExpectationOutcome> expectations, RowSink& row) {
  const auto step_rows = [&](const StepDiff& of, RowSink& step) { StepRows(of, diff, step); };
  row("schema", "dlsim.diff/1", "", kOnLines);
  row("a", InputRows(diff.a), "as `trace`", kOnLines);
  row("b", InputRows(diff.b), "as `trace`", kOnLines);
  row("options", options, "`threshold`, `align` (`number` or `index`), `tensors`", kOnLines);
  row("compared", diff.has_values() ? "elements" : "histograms", "`elements` or `histograms`",
      kOnLines);
  row("summary", Summarize(diff), "the figures of the whole: those that --expect may name",
      kOnLines);
  row("lines", DiffLines(diff), "the answer in words, one to three texts", kOnLines);
  row("expectations", expectations, "with --expect only ([gates](gates.md#in-json-and-python))",
      kOnLine | kLeftOutIfEmpty);
  row.ObjectIf(diff.FirstBeyond(), "first", "the step where they diverge; null if they do not",
               step_rows, kOnLines);
  row.Object(
      "unmatched", "what could not be compared",
      [&](RowSink& unmatched) {
        unmatched("steps_a", diff.aligned.only_a, "numbers that only a has");
        unmatched("steps_b", diff.aligned.only_b, "numbers that only b has");
        unmatched("tensors", diff.unmatched.items(), "one object per name");
      },
      kOnLines);
  row.List("steps", "one object per compared step", diff.steps, step_rows, kOnLines);
  row("tensors", diff.tensors.items(), "one object per compared tensor, in file order", kOnLines);
}

void CsvRows(int64_t step_a, int64_t step_b, const TensorDifference& of, RowSink& row) {
  constexpr const char* kElements = "of elements; empty for histograms";
  constexpr const char* kHistograms = "of histograms; empty for elements";
  row("step", step_a, "recorded number in a");
  row("step_b", step_b, "recorded number in b");
  row("tensor", of.name, "name");
  row("role", of.role, "`grad` or `act_grad`");
  row("elements", of.elements, "of the tensor");
  row("norm_a", of.norm_a, "L2 norm in a");
  row("norm_b", of.norm_b, "L2 norm in b");
  row("norm_ratio", of.figures[kNormRatio], "norm of b / norm of a");
  row("difference", of.figures[kDifference], "what the threshold is about");
  row("relative_difference", of.figures[kRelativeDifference], kElements);
  row("cosine", of.figures[kCosine], kElements);
  row("histogram_distance", of.figures[kHistogramDistance], kHistograms);
  row("zero_difference", of.figures[kZeroDifference], kHistograms);
  row("nonfinite_differences", of.nonfinite_differences,
      "elements that are infinite or NaN in a or b and not alike");
}

void CsvKeys(RowSink& row) { CsvRows(0, 0, {}, row); }

// The report.

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

std::string StepList(std::span<const int64_t> steps) {
  if (steps.empty()) return "";
  if (steps.size() == 1) return fmt::format("step {}", steps.front());
  return fmt::format("{} steps ({} to {})", steps.size(), steps.front(), steps.back());
}

std::string UnmatchedLine(const Diff& diff) {
  std::string text;
  const auto add = [&](const std::string& item, const char* where) {
    if (!item.empty()) text += (text.empty() ? "Not compared: " : "; ") + item + where;
  };
  add(StepList(diff.aligned.only_a), " only in A");
  add(StepList(diff.aligned.only_b), " only in B");
  for (const auto& [why, where] : {std::pair(Mismatch::kOnlyInA, " only in A"),
                                   {Mismatch::kOnlyInB, " only in B"},
                                   {Mismatch::kShape, " of different shapes"}}) {
    std::vector<std::string> names;
    for (const UnmatchedTensor& tensor : diff.unmatched.items()) {
      if (tensor.why == why) names.push_back(Printable(tensor.name));
    }
    add(FirstNames(names), where);
  }
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

// The ratio that is farthest from 1.
std::string RatioText(const Extent& ratio) {
  const double low = *ratio.low, high = *ratio.high;
  const bool low_is_farther = std::fabs(std::log(low)) > std::fabs(std::log(high));
  return fmt::format("{:.4g}", WithoutNanSign(low_is_farther ? low : high));
}

std::string TensorsText(const Diff& diff, size_t top) {
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
  constexpr std::string_view kDispensable[] = {"above", "norm B/A"};
  return FormatTable(rows, kDispensable) + MoreRows(shown, order.size()) + "\n" +
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

std::string LayersText(const Diff& diff) {
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
  return "\n" + FormatTable(rows);
}

std::string StepsText(const Diff& diff) {
  std::vector<TableRow> rows = {{"step", "of B", "difference", "above", "worst tensor"}};
  for (const StepDiff& step : diff.steps) {
    const bool empty = step.tensors == 0;
    rows.push_back({std::to_string(step.step_a), std::to_string(step.step_b),
                    empty ? "-" : Number(step.difference),
                    fmt::format("{}/{}", step.tensors_beyond, step.tensors),
                    empty ? "-" : Printable(diff.tensors.items()[step.tensor].name)});
  }
  return "\n" + FormatTable(rows);
}

// The answer in one to three sentences.
std::vector<std::string> DiffLines(const Diff& diff) {
  std::vector<std::string> lines;
  if (const StepDiff* const first = diff.FirstBeyond()) {
    const DiffSummary summary = Summarize(diff);
    lines = {fmt::format("They diverge at step {} in {}: {}; {}.", first->step_a,
                         Printable(diff.tensors.items()[first->tensor].name),
                         DifferenceText(diff, *first), AgreementBefore(diff, *first)),
             fmt::format("Above {}: {} of {}, {} of {}.", Number(diff.threshold),
                         summary.steps_beyond, Counted(summary.steps, "step"),
                         summary.tensors_beyond, Counted(summary.tensors, "tensor"))};
  } else {
    lines = {SameLine(diff)};
  }
  const std::string unmatched = UnmatchedLine(diff);
  if (!unmatched.empty()) lines.push_back(unmatched);
  return lines;
}

struct DiffReportOptions {
  uint64_t top = 20;      // tensors in the table
  bool by_layer = false;  // a table of the layers, in file order
  bool details = false;   // a table of the steps
};

std::string FormatDiff(const Diff& diff, const DiffReportOptions& options) {
  std::string text;
  for (const std::string& line : DiffLines(diff)) text += Wrap(line);
  text += "\n" + InputLine("A", diff.a) + InputLine("B", diff.b);
  text += NoteLines(diff.a.source.facts.notes, diff.b.source.facts.notes);
  if (LargestDifference(diff.steps) > 0) text += "\n" + TensorsText(diff, options.top);
  if (options.by_layer) text += LayersText(diff);
  if (options.details) text += StepsText(diff);
  return text;
}

struct DiffOptions {
  std::string a, b;
  TraceOptions trace;
  Alignment alignment = Alignment::kNumber;
  std::string threshold;  // empty: the default
  std::vector<Expectation> expectations;
  ResultPaths results;
  DiffReportOptions report;

  void Visit(OptionRows& option) {
    constexpr const char* kRun = "A trace, in any form that dlsim replay reads, or a profile";
    option.Argument("A", a, kRun).required = true;
    option.Argument("B", b, kRun).required = true;
    VisitReading(option, trace);
    option.Group("Comparison");
    option("--align", alignment, "RULE",
           "How steps are matched: by their number (default), or by their index, counted from the "
           "first step of each run");
    option("--threshold", threshold, "X",
           "Difference of a tensor above which the runs count as diverged (default 1e-4)");
    option.Threads();
    VisitExpect(option, expectations, "max_relative_difference<=1e-6");
    option.Output("--json", results.json, "Write the full result as JSON");
    option.Output("--csv", results.csv, "Write one row per step and tensor");
    option("--top", report.top, "Number of tensors in the table");
    option("--by-layer", report.by_layer,
           "Add a table with the worst tensor of each layer, in file order");
    option("--details", report.details, "Add a table of the steps");
    option("--quiet", results.quiet, "No report and no progress; errors only");
  }
};

double ThresholdOf(const DiffOptions& options) {
  if (options.threshold.empty()) return kDiffThreshold;
  const double threshold = ParseNumber(options.threshold, "--threshold");
  if (threshold >= 0) return threshold;
  throw UsageError("--threshold", "negative number", "0 or more", Quoted(options.threshold));
}

// What shapes the comparison, for the record.
inline void Rows(const DiffOptions& of, RowSink& row) {
  row("threshold", ThresholdOf(of), "difference above which a tensor counts as diverged");
  row("align", of.alignment, "how steps are matched: by `number` or `index`");
  row("tensors", of.trace.tensors, "the pattern of those that are read");
}

int RunDiff(const DiffOptions& options) {
  const auto figures_of = [](const Diff& diff) {
    return FiguresOf([&](RowSink& row) { Rows(Summarize(diff), row); });
  };
  for (const Expectation& expectation : options.expectations) {
    if (!expectation.subject.empty()) {
      throw UsageError(kExpectOption, "a diff has no runs to choose from", "a figure alone",
                       Quoted(expectation.text));
    }
    RequireFigure(expectation, FigureNames(figures_of(Diff())), kExpectOption);
  }
  Diff diff = OpenDiff(options.a, options.b, options.trace, options.alignment);
  diff.threshold = ThresholdOf(options);
  ResultFiles files(options.results);
  if (files.csv) files.csv->Write(CsvNames(CsvKeys) + "\n");
  CompareRuns(diff, [&](const ComparedStep& step) {
    for (const TensorDifference& tensor : step.tensors) {
      if (!files.csv) break;
      files.csv->Write(
          CsvValues([&](RowSink& row) { CsvRows(step.step_a, step.step_b, tensor, row); }) + "\n");
    }
  });
  if (diff.tensors.items().empty()) {
    const std::string place = Printable(diff.b.path);
    if (diff.unmatched.items().empty()) {
      throw InputError(place, NoTensorMatches(options.trace.tensors));
    }
    const UnmatchedTensor& first = diff.unmatched.items().front();
    throw Error(ErrorKind::kIncomparable, place, "no tensor in common",
                "those of " + Printable(diff.a.path),
                Quoted(first.name) + " " + std::string(NameOf(first.why)));
  }
  std::vector<ExpectationOutcome> outcomes;
  for (const Expectation& expectation : options.expectations) {
    outcomes.push_back(CheckExpectation(expectation, "", figures_of(diff)));
  }
  if (files.json) {
    WriteJson([&](RowSink& row) { DiffRows(diff, RowsOf(options), outcomes, row); }, *files.json);
  }
  files.Commit();
  if (options.results.wants_report()) WriteReport(FormatDiff(diff, options.report));
  return ReportOutcomes(outcomes);
}

}  // namespace

void AddDiffKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "", [](RowSink& row) { DiffRows(Diff(), {}, {}, row); }, tables);
  AddKeys("CSV", CsvKeys, tables);
}

void AddDiffOptionKeys(std::vector<KeyTable>& tables) { AddKeys<DiffOptions>("options", tables); }

Command DiffCommand() {
  return MakeCommand<DiffOptions>(
      RunDiff, "diff",
      "Compare two runs of one model: where they diverge, and by how much in each tensor",
      "Examples:\n"
      "  dlsim diff runs/float32 runs/bf16\n"
      "  dlsim diff runs/before runs/after --threshold 0 --expect 'max_relative_difference==0'\n"
      "  dlsim diff runs/seed-1 runs/seed-2 --tensors '*.weight.grad' --csv diff.csv\n"
      "  dlsim diff profiles/before profiles/after --details\n"
      "  dlsim diff runs/a runs/resumed --align index --json -");
}

}  // namespace dlsim::sim
