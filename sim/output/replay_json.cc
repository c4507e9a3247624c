// SPDX-License-Identifier: Apache-2.0
#include "sim/output/replay_json.h"

#include "sim/output/json_value.h"

namespace dlsim {
namespace {

Json JsonActivations(const TensorStats& stats) {
  Json object;
  AddCounters(stats, object);
  return object;
}

Json JsonSummary(const ReplayResult& result) {
  const ReplaySummary summary = Summarize(result);
  Json object;
  object["steps"] = summary.steps;
  object["skipped_steps"] = summary.skipped_steps;
  object["nonfinite_steps"] = summary.nonfinite_steps;
  object["first_applied_step"] =
      summary.first_applied_step ? Json(*summary.first_applied_step) : Json();
  object["stopped_at_step"] = result.stopped_at ? Json(*result.stopped_at) : Json();
  // A policy that refused its parameters has no scale.
  const auto scale = [&](double value) { return summary.steps == 0 ? Json() : JsonNumber(value); };
  object["final_scale"] = scale(summary.final_scale);
  object["min_scale"] = scale(summary.min_scale);
  object["max_scale"] = scale(summary.max_scale);
  AddCounters(summary.gradients, object);
  object["worst_step_energy_lost"] = JsonNumber(summary.worst_step_energy_lost);
  object["activations"] = JsonActivations(summary.activations);
  return object;
}

Json JsonStep(const ReplayStep& step) {
  Json object;
  object["step"] = step.step;
  object["scale"] = JsonNumber(step.scale);
  object["next_scale"] = JsonNumber(step.next_scale);
  object["finite"] = step.finite;
  object["skipped"] = step.skipped;
  if (!step.finite) {
    object["cause"] = CauseName(step.cause);
    object["cause_tensor"] = step.cause_tensor;
  }
  object["grad_norm"] = JsonNumber(step.grad_norm);
  AddCounters(step.gradients, object);
  object["activations"] = JsonActivations(step.activations);
  return object;
}

Json JsonTensor(const ReplayTensor& tensor) {
  Json object;
  object["name"] = tensor.name;
  object["role"] = RoleName(tensor.role);
  AddCounters(tensor.stats, object);
  object["worst_step_energy_lost"] = JsonNumber(tensor.worst_step_energy_lost);
  object["absmax"] = JsonNumber(tensor.stats.absmax);
  object["first_overflow_step"] =
      tensor.first_overflow_step ? Json(*tensor.first_overflow_step) : Json();
  return object;
}

// Writes `"name":[...]` with one item per line.
template <class Items, class ToJson>
void WriteArray(const char* name, const Items& items, const ToJson& to_json, OutputFile& out) {
  out.Write(std::string(",\n\"") + name + "\":[");
  const char* separator = "\n";
  for (const auto& item : items) {
    out.Write(separator + DumpJson(to_json(item)));
    separator = ",\n";
  }
  out.Write("]");
}

void WriteRun(const SimulationRun& run, OutputFile& out) {
  Json head;
  head["format"] = run.format;
  head["policy"] = run.policy;
  head["params"] = JsonFields(run.parameters);
  head["finite_test"] = FiniteTestName(run.rules.finite_test);
  head["notes"] = run.notes;
  head["summary"] = JsonSummary(run.result);
  std::string opening = DumpJson(head);
  opening.pop_back();  // the object goes on with its arrays
  out.Write(opening);
  WriteArray("events", run.result.events, JsonEvent, out);
  WriteArray("steps", run.result.steps, JsonStep, out);
  WriteArray("tensors", run.result.tensors, JsonTensor, out);
  out.Write("}");
}

}  // namespace

void WriteReplayJson(const TraceReader& trace, std::span<const std::string> paths,
                     const Json& options, std::span<const SimulationRun> runs, OutputFile& out) {
  out.Write("{\"schema\":\"dlsim.replay/1\",\n\"trace\":" + DumpJson(JsonTrace(trace, paths)) +
            ",\n\"options\":" + DumpJson(options) + ",\n\"runs\":[");
  const char* separator = "\n";
  for (const SimulationRun& run : runs) {
    out.Write(separator);
    WriteRun(run, out);
    separator = ",\n";
  }
  out.Write("]}\n");
}

}  // namespace dlsim
