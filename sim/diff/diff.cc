// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/source_text.h"
#include "sim/replay/file_state.h"
#include "sim/replay/step_sources.h"

namespace dlsim::sim {
namespace {

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

// Compares the values of two steps of traces. What was found in files that changed meanwhile
// belongs to no step.
ComparedStep CompareValues(const TraceReader& a, size_t i, const TraceReader& b, size_t k) {
  const std::vector<std::string> files_a = a.files(i), files_b = b.files(k);
  const FileState before_a = StateIfThere(files_a), before_b = StateIfThere(files_b);
  ComparedStep step = CompareSteps(a.Load(i), b.Load(k));
  RequireUnchanged(files_a, before_a);
  RequireUnchanged(files_b, before_b);
  return step;
}

}  // namespace

AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment) {
  AlignedSteps aligned;
  const bool by_index = alignment == Alignment::kIndex;
  size_t i = 0, k = 0;
  while (i < a.size() || k < b.size()) {
    const bool both = i < a.size() && k < b.size();
    if (both && (by_index || a[i] == b[k])) {
      aligned.pairs.push_back({i++, k++});
    } else if (both ? a[i] < b[k] : i < a.size()) {
      aligned.only_a.push_back(a[i++]);
    } else {
      aligned.only_b.push_back(b[k++]);
    }
  }
  return aligned;
}

void Diff::Add(const ComparedStep& compared) {
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
    ++unmatched.Of(tensor.name, t, tensor, step.step_a).steps;
  }
}

const StepDiff* Diff::FirstBeyond() const {
  const auto found =
      std::ranges::find_if(steps, [](const StepDiff& step) { return step.tensors_beyond > 0; });
  return found == steps.end() ? nullptr : &*found;
}

std::vector<const TensorDiff*> Diff::WorstFirst() const {
  std::vector<const TensorDiff*> order;
  for (const TensorDiff& tensor : tensors.items()) order.push_back(&tensor);
  std::ranges::stable_sort(order, std::greater(), &TensorDiff::difference);
  return order;
}

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

void CompareRuns(Diff& diff,
                 const std::function<void(size_t pair, const ComparedStep& step)>& visit) {
  const ProfileReader* const profile = diff.a.profile ? diff.a.profile.get() : diff.b.profile.get();
  StepOptions options;
  if (profile != nullptr) options.accumulation = profile->settings().accumulation;
  for (size_t pair = 0; pair < diff.aligned.pairs.size(); ++pair) {
    const auto [i, k] = diff.aligned.pairs[pair];
    const ComparedStep step = diff.has_values()
                                  ? CompareValues(*diff.a.trace, i, *diff.b.trace, k)
                                  : CompareSteps(diff.a.source.load(i, options)->tables(),
                                                 diff.b.source.load(k, options)->tables());
    diff.Add(step);
    visit(pair, step);
  }
}

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

}  // namespace

inline void Rows(const DiffSummary& of, RowSink& row) {
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

inline void Rows(const TensorDiff& of, RowSink& row) {
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

inline void Rows(const UnmatchedDiff& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("why", of.first.why, "`only in a`, `only in b` or `other shape`");
  row("first_step", of.first_step, "at which it could not be compared");
  row("steps", of.steps, "how many of these there are");
  row("shape_a", of.first.why == Mismatch::kOnlyInB ? nullptr : &of.first.shape_a,
      "in a; null if it is not there");
  row("shape_b", of.first.why == Mismatch::kOnlyInA ? nullptr : &of.first.shape_b,
      "in b; null if it is not there");
}

namespace {

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

}  // namespace

std::vector<Figure> FiguresOf(const Diff& diff) {
  return FiguresOf([&](RowSink& row) { Rows(Summarize(diff), row); });
}

void WriteDiffJson(const Diff& diff, const TellRows& options,
                   std::span<const ExpectationOutcome> expectations, OutputFile& out) {
  WriteJson([&](RowSink& row) { DiffRows(diff, options, expectations, row); }, out);
}

std::string DiffCsvHeader() { return CsvNames(CsvKeys) + "\n"; }

std::string DiffCsvRows(const ComparedStep& step) {
  std::string rows;
  for (const TensorDifference& tensor : step.tensors) {
    rows += CsvValues([&](RowSink& row) { CsvRows(step.step_a, step.step_b, tensor, row); });
    rows += '\n';
  }
  return rows;
}

void AddDiffKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "", [](RowSink& row) { DiffRows(Diff(), {}, {}, row); }, tables);
  AddKeys("CSV", CsvKeys, tables);
}

}  // namespace dlsim::sim
