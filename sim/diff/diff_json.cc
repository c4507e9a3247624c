// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
#include "sim/base/quantity.h"
#include "sim/base/source_text.h"
#include "sim/diff/diff_output.h"

namespace dlsim::sim {
namespace {

Json JsonOptional(const std::optional<double>& value) {
  return value ? JsonNumber(*value) : Json();
}

Json JsonInput(const DiffRun& run) {
  return JsonTrace(run.facts, std::array<std::string, 1>{run.path});
}

// The largest of what is largest, and so on.
Extent ExtentOf(const DiffResult& result, Extent TensorDiff::*of) {
  Extent extent;
  for (const TensorDiff& tensor : result.tensors()) {
    if ((tensor.*of).low) extent.Add(*(tensor.*of).low);
    if ((tensor.*of).high) extent.Add(*(tensor.*of).high);
  }
  return extent;
}

Json JsonStepDiff(const StepDiff& step, const DiffResult& result) {
  const bool empty = step.tensors == 0;
  return {{"step", step.step_a},
          {"step_b", step.step_b},
          {"difference", empty ? Json() : JsonNumber(step.difference)},
          {"tensor", empty ? Json() : Json(result.tensors()[step.tensor].name)},
          {"tensors", step.tensors},
          {"tensors_beyond", step.tensors_beyond}};
}

Json JsonTensorDiff(const TensorDiff& tensor) {
  return {{"name", tensor.name},
          {"role", NameOf(tensor.role)},
          {"steps", tensor.steps},
          {"steps_beyond", tensor.steps_beyond},
          {"first_step_beyond", tensor.first_beyond ? Json(*tensor.first_beyond) : Json()},
          {"difference", JsonNumber(tensor.difference)},
          {"worst_step", tensor.worst_step},
          {"max_relative_difference", JsonOptional(tensor.relative_difference.high)},
          {"min_cosine", JsonOptional(tensor.cosine.low)},
          {"min_norm_ratio", JsonOptional(tensor.norm_ratio.low)},
          {"max_norm_ratio", JsonOptional(tensor.norm_ratio.high)},
          {"max_histogram_distance", JsonOptional(tensor.histogram_distance.high)},
          {"max_zero_difference", JsonOptional(tensor.zero_difference.high)},
          {"nonfinite_differences", tensor.nonfinite_differences}};
}

Json JsonUnmatched(const Diff& diff) {
  Json tensors = Json::array();
  for (const UnmatchedOverSteps& tensor : diff.result.unmatched()) {
    const auto shape = [](Mismatch absent, const UnmatchedTensor& of, auto member) {
      return of.why == absent ? Json() : Json(of.*member);
    };
    tensors.push_back(
        {{"name", tensor.first.name},
         {"why", NameOf(tensor.first.why)},
         {"first_step", tensor.first_step},
         {"steps", tensor.steps},
         {"shape_a", shape(Mismatch::kOnlyInB, tensor.first, &UnmatchedTensor::shape_a)},
         {"shape_b", shape(Mismatch::kOnlyInA, tensor.first, &UnmatchedTensor::shape_b)}});
  }
  return {{"steps_a", diff.aligned.only_a},
          {"steps_b", diff.aligned.only_b},
          {"tensors", std::move(tensors)}};
}

std::string CsvNumber(const std::optional<double>& value) {
  return value ? fmt::format("{}", WithoutNanSign(*value)) : "";
}

}  // namespace

Json JsonFigures(const DiffResult& result, uint64_t unmatched_steps) {
  const auto extent = [&](Extent TensorDiff::*of) { return ExtentOf(result, of); };
  const StepDiff* const first = result.FirstBeyond();
  size_t steps_beyond = 0, tensors_beyond = 0;
  uint64_t nonfinite = 0;
  Extent difference;
  for (const StepDiff& step : result.steps()) steps_beyond += step.tensors_beyond > 0;
  for (const TensorDiff& tensor : result.tensors()) {
    tensors_beyond += tensor.steps_beyond > 0;
    nonfinite += tensor.nonfinite_differences;
    difference.Add(tensor.difference);
  }
  return {{"steps", result.steps().size()},
          {"tensors", result.tensors().size()},
          {"steps_beyond", steps_beyond},
          {"tensors_beyond", tensors_beyond},
          {"first_step_beyond", first == nullptr ? Json() : Json(first->step_a)},
          {"max_difference", JsonOptional(difference.high)},
          {"max_relative_difference", JsonOptional(extent(&TensorDiff::relative_difference).high)},
          {"min_cosine", JsonOptional(extent(&TensorDiff::cosine).low)},
          {"min_norm_ratio", JsonOptional(extent(&TensorDiff::norm_ratio).low)},
          {"max_norm_ratio", JsonOptional(extent(&TensorDiff::norm_ratio).high)},
          {"max_histogram_distance", JsonOptional(extent(&TensorDiff::histogram_distance).high)},
          {"max_zero_difference", JsonOptional(extent(&TensorDiff::zero_difference).high)},
          {"nonfinite_differences", nonfinite},
          {"unmatched_steps", unmatched_steps},
          {"unmatched_tensors", result.unmatched().size()}};
}

Json JsonFigures(const Diff& diff) {
  return JsonFigures(diff.result, diff.aligned.only_a.size() + diff.aligned.only_b.size());
}

void WriteDiffJson(const Diff& diff, const Json& options, const Json& expectations,
                   OutputFile& out) {
  JsonStream json("dlsim.diff/1", out);
  json.Member("a", JsonInput(diff.runs.a));
  json.Member("b", JsonInput(diff.runs.b));
  json.Member("options", options);
  json.Member("compared", diff.runs.has_elements() ? "elements" : "histograms");
  json.Member("summary", JsonFigures(diff));
  json.Member("lines", DiffLines(diff));
  if (!expectations.is_null()) json.Member("expectations", expectations);
  const StepDiff* const first = diff.result.FirstBeyond();
  json.Member("first", first == nullptr ? Json() : JsonStepDiff(*first, diff.result));
  json.Member("unmatched", JsonUnmatched(diff));
  json.Array("steps", diff.result.steps(),
             [&](const StepDiff& step) { return JsonStepDiff(step, diff.result); });
  json.Array("tensors", diff.result.tensors(), JsonTensorDiff);
  json.Finish();
}

std::string DiffCsvHeader() {
  return "step,step_b,tensor,role,elements,norm_a,norm_b,norm_ratio,difference,"
         "relative_difference,cosine,histogram_distance,zero_difference,nonfinite_differences\n";
}

std::string DiffCsvRows(const ComparedStep& step) {
  std::string rows;
  for (const TensorDifference& tensor : step.tensors) {
    rows += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", step.step_a, step.step_b,
                        CsvField(tensor.name), NameOf(tensor.role), tensor.elements,
                        CsvNumber(tensor.norm_a), CsvNumber(tensor.norm_b),
                        CsvNumber(tensor.norm_ratio()), CsvNumber(tensor.difference()),
                        CsvNumber(tensor.relative_difference), CsvNumber(tensor.cosine),
                        CsvNumber(tensor.histogram_distance), CsvNumber(tensor.zero_difference),
                        tensor.nonfinite_differences);
  }
  return rows;
}

}  // namespace dlsim::sim
