// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
#include "sim/base/source_text.h"
#include "sim/studies/accumulation_output.h"

namespace dlsim::sim {
namespace {

Json JsonChunk(uint64_t chunk_length) {
  return chunk_length == kOneChunk ? Json() : Json(chunk_length);
}

Json JsonRules(PrecisionOptLevel level) {
  Json rules = Json::object();
  for (const LevelRule& rule : kLevelRules) {
    if (rule.level != level) continue;
    rules[NameOf(rule.operation)] = {
        {"sums", NameOf(rule.sums)}, {"evidence", NameOf(rule.evidence)}, {"note", rule.note}};
  }
  return rules;
}

Json JsonRun(const SumRun& run) {
  Json object = {{"name", run.name}};
  object["level"] = run.level ? Json(NumberOf(*run.level)) : Json();
  object["format"] = run.format;
  object["accumulator"] = run.level ? Json() : Json(run.accumulator);
  object["combiner"] = run.level ? Json() : Json(run.combiner);
  object["chunk"] = JsonChunk(run.chunk_length);
  if (run.level) object["rules"] = JsonRules(*run.level);
  return object;
}

Json JsonSummary(const SumSummary& summary, const std::string& run) {
  const bool has_error = summary.worst_step >= 0;
  Json object = {{"run", run},
                 {"sums", summary.sums},
                 {"nonfinite", summary.nonfinite},
                 {"overflowed", summary.overflowed}};
  object["worst_error"] = has_error ? JsonNumber(summary.worst_error) : Json();
  object["worst_input_error"] = has_error ? JsonNumber(summary.input_error) : Json();
  object["worst_step"] = has_error ? Json(summary.worst_step) : Json();
  object["worst_micro"] = summary.worst_micro < 0 ? Json() : Json(summary.worst_micro);
  object["worst_relative_error"] = has_error ? JsonNumber(summary.relative_error) : Json();
  object["mean_error"] = has_error ? JsonNumber(summary.mean_error()) : Json();
  object["max_error"] = has_error ? JsonNumber(summary.max_error) : Json();
  object["additions"] = summary.counts.additions;
  object["swamped"] = summary.counts.swamped;
  object["overflows"] = summary.counts.overflows;
  return object;
}

Json JsonResult(const SumResult& result, std::span<const SumRun> runs) {
  Json object = {{"sum", result.reduction},
                 {"operation", NameOf(result.operation)},
                 {"tensor", result.tensor}};
  object["other"] = result.other.empty() ? Json() : Json(result.other);
  object["runs"] = Json::array();
  for (size_t r = 0; r < runs.size(); ++r) {
    object["runs"].push_back(JsonSummary(result.runs[r], runs[r].name));
  }
  return object;
}

}  // namespace

void WriteSumJson(const SourceFacts& facts, std::span<const std::string> paths, const Json& options,
                  std::span<const SumRun> runs, std::span<const SumResult> results,
                  OutputFile& out) {
  JsonStream json("dlsim.accumulate/1", JsonTrace(facts, paths), options, out);
  json.Array("runs", runs, JsonRun);
  json.Array("results", results, [&](const SumResult& result) { return JsonResult(result, runs); });
  json.Finish();
}

std::string SumCsvHeader() {
  return "run,sum,operation,step,micro,tensor,other,outputs,reference,result,error,input_error,"
         "relative_error,"
         "max_error,additions,swamped,overflows\n";
}

void WriteSumCsvRows(const SumItem& item, std::span<const SumRun> runs,
                     std::span<const SumOutcome> outcomes, OutputFile& out) {
  std::string rows;
  for (size_t r = 0; r < runs.size(); ++r) {
    const SumOutcome& o = outcomes[r];
    rows += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                        CsvField(runs[r].name), item.reduction, NameOf(item.operation), item.step,
                        item.micro < 0 ? std::string() : std::to_string(item.micro),
                        CsvField(item.tensor), CsvField(item.other), o.outputs, o.reference,
                        o.result, o.term_error, o.input_error, o.relative_error, o.max_error,
                        o.counts.additions, o.counts.swamped, o.counts.overflows);
  }
  out.Write(rows);
}

}  // namespace dlsim::sim
