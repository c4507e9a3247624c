// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
#include "sim/base/quantity.h"
#include "sim/updates/update_output.h"

namespace dlsim::sim {
namespace {

Json JsonOptional(const std::optional<double>& value) {
  return value ? JsonNumber(*value) : Json();
}

Json JsonStep(const std::optional<int64_t>& step) { return step ? Json(*step) : Json(); }

void AddCounts(const UpdateCounts& counts, Json& object) {
  object["updates"] = counts.updates;
  object["lost"] = counts.lost;
  object["altered"] = counts.altered;
}

Json JsonShare(uint64_t count, uint64_t of) {
  return of == 0 ? Json() : JsonNumber(static_cast<double>(count) / static_cast<double>(of));
}

Json JsonProbe(const UpdateStudy& study) {
  Json object = {{"path", study.path},
                 {"tensors", study.head.tensors.size()},
                 {"elements", study.head.FollowedCount()},
                 {"updates", study.steps},
                 {"first_step", study.first_step},
                 {"last_step", study.last_step},
                 {"optimizers", study.optimizers},
                 {"cut_bytes", study.cut_bytes}};
  object["distance_from_recorded"] = JsonOptional(study.distance);
  return object;
}

Json JsonFormats(const UpdateRun& run) {
  return {{"name", run.name},
          {"weights", StoredName(run.weights)},
          {"master", run.master ? "fp32" : "none"},
          {"first", StoredName(run.first)},
          {"second", StoredName(run.second)},
          {"gradients", StoredName(run.gradients)},
          {"rounding", NameOf(run.rounding)},
          {"compensation", NameOf(run.compensation)},
          {"kernel", NameOf(run.kernel)}};
}

Json JsonTensor(const ProbeTensor& tensor, const TensorOutcome& outcome) {
  Json object = {{"tensor", tensor.name}, {"elements", tensor.count}};
  object["drift"] = JsonOptional(outcome.drift);
  object["progress"] = JsonOptional(outcome.progress);
  AddCounts(outcome.counts, object);
  object["second_moment_ratio"] = JsonOptional(outcome.second_bias);
  object["nonfinite"] = outcome.nonfinite;
  object["first_lost"] = JsonStep(outcome.first_lost);
  object["harmed_from"] = JsonStep(outcome.harmed_since);
  return object;
}

Json JsonRun(const UpdateStudy& study, const RunOutcome& run) {
  Json object = JsonFormats(run.run);
  object["beta2"] = JsonOptional(run.run.overrides.beta2);
  object["verdict"] = NameOf(VerdictOf(run));
  object.update(JsonFigures(run));
  object["fixes"] = FixesOf(study, run);
  object["tensors"] = Json::array();
  for (size_t t = 0; t < run.tensors.size(); ++t) {
    object["tensors"].push_back(JsonTensor(study.head.tensors[t], run.tensors[t]));
  }
  return object;
}

std::string Field(const std::optional<double>& value) {
  return value ? fmt::format("{}", WithoutNanSign(*value)) : "";
}

std::string Field(const std::optional<int64_t>& step) { return step ? std::to_string(*step) : ""; }

}  // namespace

Json JsonFigures(const RunOutcome& run) {
  Json object = {{"drift", JsonOptional(run.drift)}, {"progress", JsonOptional(run.progress)}};
  AddCounts(run.counts, object);
  object["lost_share"] = JsonShare(run.counts.lost, run.counts.updates);
  object["altered_share"] = JsonShare(run.counts.altered, run.counts.updates);
  object["second_moment_ratio"] = JsonOptional(run.second_bias);
  object["nonfinite"] = run.nonfinite;
  object["first_lost"] = JsonStep(run.first_lost);
  object["harmed_from"] = JsonStep(run.harmed_since);
  return object;
}

void WriteUpdatesJson(const UpdateStudy& study, const Json& options, const Json& expectations,
                      OutputFile& out) {
  JsonStream json("dlsim.updates/1", out);
  json.Member("probe", JsonProbe(study));
  json.Member("options", options);
  json.Member("lines", UpdateSentences(study));
  json.Array("runs", study.runs, [&](const RunOutcome& run) { return JsonRun(study, run); });
  if (!expectations.is_null()) json.Member("expectations", expectations);
  json.Finish();
}

void WriteUpdatesCsv(const UpdateStudy& study, OutputFile& out) {
  out.Write(
      "run,tensor,elements,drift,progress,updates,lost,altered,second_moment_ratio,nonfinite,"
      "first_lost,harmed_from\n");
  for (const RunOutcome& run : study.runs) {
    for (size_t t = 0; t < run.tensors.size(); ++t) {
      const TensorOutcome& tensor = run.tensors[t];
      out.Write(fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", CsvField(run.run.name),
                            CsvField(study.head.tensors[t].name), study.head.tensors[t].count,
                            Field(tensor.drift), Field(tensor.progress), tensor.counts.updates,
                            tensor.counts.lost, tensor.counts.altered, Field(tensor.second_bias),
                            tensor.nonfinite, Field(tensor.first_lost),
                            Field(tensor.harmed_since)));
    }
  }
}

void WriteElementsCsv(const ProbeHead& head, const UpdateReplay& replay, OutputFile& out) {
  out.Write("run,tensor,index,start,float32,weight,first,second\n");
  for (size_t r = 0; r < replay.runs().size(); ++r) {
    const std::string run = CsvField(replay.runs()[r].name);
    for (size_t t = 0; t < head.tensors.size(); ++t) {
      const std::string tensor = CsvField(head.tensors[t].name);
      const TensorState& reference = replay.Float32Of(r, t);
      const TensorState& state = replay.StateOf(r, t);
      std::string rows;
      for (size_t i = 0; i < state.weights.size(); ++i) {
        rows += fmt::format("{},{},{},{},{},{},{},{}\n", run, tensor, head.tensors[t].IndexOf(i),
                            WithoutNanSign(replay.StartOf(t)[i]),
                            WithoutNanSign(reference.weights[i]), WithoutNanSign(state.weights[i]),
                            WithoutNanSign(state.first[i]), WithoutNanSign(state.second[i]));
      }
      out.Write(rows);
    }
  }
}

}  // namespace dlsim::sim
