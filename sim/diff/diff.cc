// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
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

Json JsonOptional(const std::optional<double>& value) {
  return value ? JsonNumber(*value) : Json();
}

void AddExtents(const Extents& figures, Json& object) {
  for (size_t f = 0; f < kFigures.size(); ++f) {
    const std::string name = kFigures[f].name;
    if (kFigures[f].min) object["min_" + name] = JsonOptional(figures[f].low);
    if (kFigures[f].max) object["max_" + name] = JsonOptional(figures[f].high);
  }
}

Json JsonInput(const DiffRun& run) { return JsonTrace(run.source.facts, std::array{run.path}); }

Json JsonStepDiff(const StepDiff& step, const Diff& diff) {
  const bool empty = step.tensors == 0;
  return {{"step", step.step_a},
          {"step_b", step.step_b},
          {"difference", empty ? Json() : JsonNumber(step.difference)},
          {"tensor", empty ? Json() : Json(diff.tensors.items()[step.tensor].name)},
          {"tensors", step.tensors},
          {"tensors_beyond", step.tensors_beyond}};
}

Json JsonTensorDiff(const TensorDiff& tensor) {
  Json object = {{"name", tensor.name},
                 {"role", NameOf(tensor.role)},
                 {"steps", tensor.steps},
                 {"steps_beyond", tensor.steps_beyond},
                 {"first_step_beyond", tensor.first_beyond ? Json(*tensor.first_beyond) : Json()},
                 {"difference", JsonNumber(tensor.difference())},
                 {"worst_step", tensor.worst_step}};
  AddExtents(tensor.figures, object);
  object.erase("max_difference");
  object["nonfinite_differences"] = tensor.nonfinite_differences;
  return object;
}

Json JsonUnmatched(const Diff& diff) {
  Json tensors = Json::array();
  for (const UnmatchedDiff& tensor : diff.unmatched.items()) {
    const UnmatchedTensor& first = tensor.first;
    tensors.push_back(
        {{"name", tensor.name},
         {"why", NameOf(first.why)},
         {"first_step", tensor.first_step},
         {"steps", tensor.steps},
         {"shape_a", first.why == Mismatch::kOnlyInB ? Json() : Json(first.shape_a)},
         {"shape_b", first.why == Mismatch::kOnlyInA ? Json() : Json(first.shape_b)}});
  }
  return {{"steps_a", diff.aligned.only_a},
          {"steps_b", diff.aligned.only_b},
          {"tensors", std::move(tensors)}};
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
    for (size_t f = 0; f < kFigures.size(); ++f) {
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

Json JsonFigures(const Diff& diff) {
  size_t steps_beyond = 0, tensors_beyond = 0;
  uint64_t nonfinite = 0;
  Extents figures;
  for (const StepDiff& step : diff.steps) steps_beyond += step.tensors_beyond > 0;
  for (const TensorDiff& tensor : diff.tensors.items()) {
    tensors_beyond += tensor.steps_beyond > 0;
    nonfinite += tensor.nonfinite_differences;
    for (size_t f = 0; f < kFigures.size(); ++f) {
      if (tensor.figures[f].low) figures[f].Add(*tensor.figures[f].low);
      if (tensor.figures[f].high) figures[f].Add(*tensor.figures[f].high);
    }
  }
  const StepDiff* const first = diff.FirstBeyond();
  Json object = {{"steps", diff.steps.size()},
                 {"tensors", diff.tensors.items().size()},
                 {"steps_beyond", steps_beyond},
                 {"tensors_beyond", tensors_beyond},
                 {"first_step_beyond", first == nullptr ? Json() : Json(first->step_a)}};
  AddExtents(figures, object);
  object["nonfinite_differences"] = nonfinite;
  object["unmatched_steps"] = diff.aligned.only_a.size() + diff.aligned.only_b.size();
  object["unmatched_tensors"] = diff.unmatched.items().size();
  return object;
}

void WriteDiffJson(const Diff& diff, const Json& options, const Json& expectations,
                   OutputFile& out) {
  JsonStream json("dlsim.diff/1", out);
  json.Member("a", JsonInput(diff.a));
  json.Member("b", JsonInput(diff.b));
  json.Member("options", options);
  json.Member("compared", diff.has_values() ? "elements" : "histograms");
  json.Member("summary", JsonFigures(diff));
  json.Member("lines", DiffLines(diff));
  if (!expectations.is_null()) json.Member("expectations", expectations);
  const StepDiff* const first = diff.FirstBeyond();
  json.Member("first", first == nullptr ? Json() : JsonStepDiff(*first, diff));
  json.Member("unmatched", JsonUnmatched(diff));
  json.Array("steps", diff.steps, [&](const StepDiff& step) { return JsonStepDiff(step, diff); });
  json.Array("tensors", diff.tensors.items(), JsonTensorDiff);
  json.Finish();
}

std::string DiffCsvHeader() {
  std::string header = "step,step_b,tensor,role,elements,norm_a,norm_b";
  for (const FigureRow& figure : kFigures) header += std::string(",") + figure.name;
  return header + ",nonfinite_differences\n";
}

std::string DiffCsvRows(const ComparedStep& step) {
  std::string rows;
  for (const TensorDifference& tensor : step.tensors) {
    rows += fmt::format("{},{},{},{},{},{},{}", step.step_a, step.step_b, CsvField(tensor.name),
                        NameOf(tensor.role), tensor.elements, WithoutNanSign(tensor.norm_a),
                        WithoutNanSign(tensor.norm_b));
    for (const std::optional<double>& figure : tensor.figures) {
      rows += figure ? fmt::format(",{}", WithoutNanSign(*figure)) : ",";
    }
    rows += fmt::format(",{}\n", tensor.nonfinite_differences);
  }
  return rows;
}

}  // namespace dlsim::sim
