// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "sim/base/caller.h"
#include "sim/base/quantity.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/layer_name.h"
#include "sim/replay/step_sources.h"
#include "src/base/parallel.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `part` of `whole`: nothing of nothing is `of_nothing`.
double Ratio(double part, double whole, double of_nothing) {
  if (whole != 0) return part / whole;
  return part == 0 ? of_nothing : kInfinity;
}

using Place = std::pair<size_t, size_t>;  // in a and in b

// Adds what does not match to `step`, and an entry for what does. Micro-steps may have activations
// of other lengths than that of the shape: `elements_a` and `elements_b` tell.
std::vector<Place> Match(const std::vector<TensorRef>& a, const std::vector<TensorRef>& b,
                         const std::function<uint64_t(size_t)>& elements_a,
                         const std::function<uint64_t(size_t)>& elements_b, ComparedStep& step) {
  std::map<std::string_view, size_t> of_b;
  for (size_t k = 0; k < b.size(); ++k) {
    if (IsGradient(b[k]->role)) of_b.emplace(b[k]->name, k);
  }
  std::vector<Place> places;
  for (size_t i = 0; i < a.size() && IsGradient(a[i]->role); ++i) {
    const auto found = of_b.find(a[i]->name);
    if (found == of_b.end()) {
      step.unmatched.push_back({a[i]->name, Mismatch::kOnlyInA, a[i]->shape, {}});
      continue;
    }
    const size_t k = found->second;
    if (a[i]->shape != b[k]->shape || elements_a(i) != elements_b(k)) {
      step.unmatched.push_back({a[i]->name, Mismatch::kShape, a[i]->shape, b[k]->shape});
    } else {
      places.emplace_back(i, k);
      step.tensors.push_back({.name = a[i]->name, .role = a[i]->role, .elements = elements_a(i)});
    }
    of_b.erase(found);
  }
  for (const TensorRef& tensor : b) {
    if (!of_b.contains(tensor->name)) continue;
    step.unmatched.push_back({tensor->name, Mismatch::kOnlyInB, {}, tensor->shape});
  }
  return places;
}

// Completes a difference by what values and tables have in common.
void SetDifference(double difference, TensorDifference& into) {
  into.figures[kNormRatio] = Ratio(into.norm_b, into.norm_a, 1);
  into.figures[kDifference] = into.nonfinite_differences > 0 ? kInfinity : difference;
}

// Sums over the elements of a and b that are finite in both, in the order of measure.h: the same
// digits for any number of threads.
struct PairSums {
  uint64_t nonfinite_differences = 0;
  double squares_a = 0, squares_b = 0, product = 0;
  double squares_of_difference = 0;  // of b - a

  void Add(const PairSums& later) {
    nonfinite_differences += later.nonfinite_differences;
    squares_a += later.squares_a;
    squares_b += later.squares_b;
    product += later.product;
    squares_of_difference += later.squares_of_difference;
  }
};

bool IsFiniteInBoth(float a, float b) { return std::isfinite(a) && std::isfinite(b); }

uint64_t NonfiniteDifferences(std::span<const float> a, std::span<const float> b) {
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool alike = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    count += !IsFiniteInBoth(a[i], b[i]) && !alike;
  }
  return count;
}

// Compares at most kChunkElements.
PairSums CompareChunk(std::span<const float> a, std::span<const float> b) {
  SumLanes squares_a{}, squares_b{}, product{}, squares_of_difference{};
  size_t nonfinite = 0;
  ForEachLane(a.size(), [&](size_t i, size_t lane) {
    const bool finite = IsFiniteInBoth(a[i], b[i]);
    const double of_a = finite ? double{a[i]} : 0, of_b = finite ? double{b[i]} : 0;
    const double difference = of_b - of_a;
    squares_a[lane] += of_a * of_a;
    squares_b[lane] += of_b * of_b;
    product[lane] += of_a * of_b;
    squares_of_difference[lane] += difference * difference;
    nonfinite += !finite;
  });
  return {nonfinite == 0 ? 0 : NonfiniteDifferences(a, b), AddLanes(squares_a), AddLanes(squares_b),
          AddLanes(product), AddLanes(squares_of_difference)};
}

// Returns the sum of some of the recordings of a block.
std::span<const float> SumOf(BlockLoader& loader, size_t first, size_t count, size_t elements,
                             std::vector<float>& sum) {
  if (count == 1 && loader.Values(first).size() == elements) return loader.Values(first);
  sum.assign(elements, 0.0f);
  for (size_t part = first; part < first + count; ++part) {
    const std::span<const float> values = loader.Values(part);
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// `sources` has the recordings of a, then those of b.
PairSums CompareBlock(const TensorSources& sources, size_t of_a, const Block& block) {
  BlockLoader loader(Accumulation::kQuantizeThenSum);
  loader.Read(sources, block);
  std::vector<float> sum_a, sum_b;
  const size_t of_b = sources.recordings.size() - of_a;
  const std::span<const float> a = SumOf(loader, 0, of_a, block.count, sum_a);
  const std::span<const float> b = SumOf(loader, of_a, of_b, block.count, sum_b);
  PairSums sums;
  for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
    const size_t count = std::min(kChunkElements, block.count - begin);
    sums.Add(CompareChunk(a.subspan(begin, count), b.subspan(begin, count)));
  }
  return sums;
}

std::vector<PairSums> CompareValues(const std::vector<TensorSources>& sources,
                                    std::span<const size_t> recordings_of_a) {
  std::vector<PairSums> sums(sources.size());
  ForEachWave(sources, [&](std::span<const Block> wave) {
    std::vector<PairSums> of_block(wave.size());
    uint64_t elements = 0;
    for (const Block& block : wave) elements += 2 * block.count;
    ParallelFor(
        wave.size(),
        [&](size_t i) {
          const size_t tensor = wave[i].tensor;
          of_block[i] = CompareBlock(sources[tensor], recordings_of_a[tensor], wave[i]);
        },
        elements);
    for (size_t i = 0; i < wave.size(); ++i) sums[wave[i].tensor].Add(of_block[i]);
  });
  return sums;
}

void SetFigures(const PairSums& sums, TensorDifference& into) {
  into.nonfinite_differences = sums.nonfinite_differences;
  into.norm_a = std::sqrt(sums.squares_a);
  into.norm_b = std::sqrt(sums.squares_b);
  const double relative = Ratio(std::sqrt(sums.squares_of_difference), into.norm_a, 0);
  const double norms = std::sqrt(sums.squares_a * sums.squares_b);
  const bool both_zero = sums.squares_a == 0 && sums.squares_b == 0;
  into.figures[kRelativeDifference] = relative;
  into.figures[kCosine] =
      norms == 0 ? (both_zero ? 1 : 0) : std::clamp(sums.product / norms, -1.0, 1.0);
  SetDifference(relative, into);
}

// Counts of nonzero magnitudes by the biased exponent of float32: the first has all subnormals.
using Binades = std::array<uint64_t, 255>;

Binades BinadesOf(const TensorTable& table) {
  Binades binades{};
  for (const Binade& binade : table.binades) {
    binades[static_cast<size_t>(std::max(binade.exponent, -127) + 127)] += binade.count;
  }
  for (const float value : table.values) {
    ++binades[std::bit_cast<uint32_t>(std::fabs(value)) >> 23];
  }
  return binades;
}

// In one dimension the earth mover's distance is the area between the distribution functions.
double Distance(const TensorTable& a, const TensorTable& b) {
  const uint64_t count_a = a.nonzero_finite(), count_b = b.nonzero_finite();
  if (count_a == 0 || count_b == 0) return count_a == count_b ? 0 : kInfinity;
  const Binades of_a = BinadesOf(a), of_b = BinadesOf(b);
  uint64_t below_a = 0, below_b = 0;
  double distance = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    below_a += of_a[i];
    below_b += of_b[i];
    distance += std::fabs(static_cast<double>(below_a) / static_cast<double>(count_a) -
                          static_cast<double>(below_b) / static_cast<double>(count_b));
  }
  return distance;
}

double ShareOfZeros(const TensorTable& table) {
  return Ratio(static_cast<double>(table.zeros), static_cast<double>(table.elements), 0);
}

uint64_t Apart(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

void SetFigures(const TensorTable& a, const TensorTable& b, TensorDifference& into) {
  into.nonfinite_differences = Apart(a.nan, b.nan) + Apart(a.inf, b.inf);
  into.norm_a = std::sqrt(a.sum_of_squares);
  into.norm_b = std::sqrt(b.sum_of_squares);
  const double distance = Distance(a, b), zeros = std::fabs(ShareOfZeros(a) - ShareOfZeros(b));
  into.figures[kHistogramDistance] = distance;
  into.figures[kZeroDifference] = zeros;
  SetDifference(std::max({std::fabs(Ratio(into.norm_b, into.norm_a, 1) - 1), distance, zeros}),
                into);
}

}  // namespace

ComparedStep CompareSteps(const TraceStep& a, const TraceStep& b) {
  ComparedStep step = {a.step, b.step, {}, {}};
  const std::vector<TensorSources> of_a = CollectTensors(a, Pass::kBackward),
                                   of_b = CollectTensors(b, Pass::kBackward);
  std::vector<TensorSources> joined;
  std::vector<size_t> recordings_of_a;
  const std::vector<Place> places = Match(
      DescribeTensors(a), DescribeTensors(b), [&](size_t i) { return of_a[i].elements; },
      [&](size_t k) { return of_b[k].elements; }, step);
  for (const auto& [i, k] : places) {
    TensorSources& both = joined.emplace_back(of_a[i]);
    recordings_of_a.push_back(both.recordings.size());
    both.recordings.insert(both.recordings.end(), of_b[k].recordings.begin(),
                           of_b[k].recordings.end());
  }
  const std::vector<PairSums> sums = CompareValues(joined, recordings_of_a);
  for (size_t t = 0; t < sums.size(); ++t) SetFigures(sums[t], step.tensors[t]);
  return step;
}

ComparedStep CompareSteps(const StepTables& a, const StepTables& b) {
  ComparedStep step = {a.step, b.step, {}, {}};
  const auto elements_of = [](const StepTables& tables) {
    return [&](size_t t) {
      uint64_t most = 0;  // a micro-step may lack the tensor
      for (const auto& part : tables.parts) most = std::max(most, part[t].elements);
      return most;
    };
  };
  const std::vector<Place> places =
      Match(a.tensors, b.tensors, elements_of(a), elements_of(b), step);
  for (size_t t = 0; t < places.size(); ++t) {
    SetFigures(a.Sum(places[t].first), b.Sum(places[t].second), step.tensors[t]);
  }
  return step;
}

// Two runs.

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

}  // namespace

AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment) {
  AlignedSteps aligned;
  const bool by_index = alignment == Alignment::kIndex;
  size_t i = 0, k = 0;
  while (i < a.size() || k < b.size()) {
    const bool both = i < a.size() && k < b.size();
    if (both && (by_index || a[i] == b[k])) {
      aligned.pairs.emplace_back(i++, k++);
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
    ++unmatched.Of(tensor.name, t, tensor.why, tensor.shape_a, tensor.shape_b, step.step_a).steps;
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
      const TraceReader &of_a = *diff.a.trace, &of_b = *diff.b.trace;
      const std::vector<std::string> files_a = of_a.files(i), files_b = of_b.files(k);
      const FileState before_a = StateIfThere(files_a), before_b = StateIfThere(files_b);
      step = CompareSteps(of_a.Load(i), of_b.Load(k));
      RequireUnchanged(files_a, before_a);
      RequireUnchanged(files_b, before_b);
    } else {
      step = CompareSteps(diff.a.source.load(i, options)->tables(),
                          diff.b.source.load(k, options)->tables());
    }
    diff.Add(step);
    visit(step);
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

// The report.

namespace {

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
  return "\n" + FormatTable(rows);
}

std::string StepTable(const Diff& diff) {
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

}  // namespace

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
