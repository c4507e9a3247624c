// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay_json.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "sim/base/counter_columns.h"
#include "sim/base/json_stream.h"
#include "sim/base/source_text.h"
#include "sim/replay/layer_losses.h"

namespace dlsim::sim {
namespace {

// A share of elements, 0 if there are none.
Json Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? JsonNumber(*value) : Json();
}

// Adds what a step's tensors lose; null without tensors.
void AddHarm(const StepHarm& harm, Json& object) {
  const bool none = harm.worst_tensor.empty();
  object["mean_harm"] = none ? Json() : JsonNumber(harm.mean);
  object["worst_harm"] = none ? Json() : JsonNumber(harm.worst);
  object["worst_harm_tensor"] = none ? Json() : Json(harm.worst_tensor);
}

void AddHarm(const HarmOverSteps& harm, Json& object) {
  object["mean_harm"] = harm.steps == 0 ? Json() : JsonNumber(harm.mean());
  object["worst_harm"] = harm.steps == 0 ? Json() : JsonNumber(harm.worst);
}

void AddChannels(const ChannelHarm& harm, Json& object) {
  const bool none = harm.mean.steps == 0;
  object["mean_channel_harm"] = none ? Json() : JsonNumber(harm.mean.mean());
  object["worst_channel_harm"] = none ? Json() : JsonNumber(harm.worst);
  object["channels"] = harm.channels == 0 ? Json() : Json(harm.channels);
}

void AddClipping(const ReplaySummary& summary, const Clipping& clipping, Json& object) {
  if (!clipping.enabled()) return;
  object["clipped_steps"] = summary.clipped_steps;
  if (!clipping.max_value) return;
  object["clipped_fraction"] = Share(summary.clipped_elements, summary.clippable_elements);
}

// Adds what clipping by norm does.
template <class Step>
void AddClipCoefficient(const Step& step, const Clipping& clipping, Json& object) {
  if (!clipping.max_norm) return;
  object["converted_grad_norm"] = OrNull(step.converted_norm);
  object["clip_coefficient"] = OrNull(step.clip_coefficient);
}

// Null for an optimizer without gradients.
Json JsonOptimizer(const OptimizerStep& optimizer, const Clipping& clipping) {
  if (!optimizer.has_gradients) return Json();
  Json object = {{"finite", optimizer.finite},
                 {"skipped", optimizer.skipped},
                 {"grad_norm", OrNull(optimizer.grad_norm)}};
  AddClipCoefficient(optimizer, clipping, object);
  return object;
}

Json JsonStep(const ReplayStep& step, const Clipping& clipping) {
  Json object;
  object["step"] = step.step;
  object["scale"] = JsonNumber(step.scale);
  object["next_scale"] = JsonNumber(step.next_scale);
  object["finite"] = step.finite;
  object["skipped"] = step.skipped;
  if (!step.finite) {
    object["cause"] = NameOf(step.cause);
    object["cause_tensor"] = step.cause_tensor;
    object["lower_scale_helps"] = step.lower_scale_helps;
  }
  object["grad_norm"] = OrNull(step.grad_norm);
  AddClipCoefficient(step, clipping, object);
  if (clipping.max_value) {
    object["clipped_fraction"] =
        step.clipped_elements ? Share(*step.clipped_elements, step.clippable_elements) : Json();
  }
  for (const OptimizerStep& optimizer : step.optimizers) {
    object["optimizers"].push_back(JsonOptimizer(optimizer, clipping));
  }
  AddCounters(step.gradients, object);
  AddHarm(step.harm, object);
  Json& activations = object["activations"];
  AddCounters(step.activations, activations);
  AddHarm(step.activation_harm, activations);
  return object;
}

Json JsonTensor(const ReplayTensor& tensor) {
  Json object;
  object["name"] = tensor.name;
  object["role"] = NameOf(tensor.role);
  AddCounters(tensor.stats, object);
  object["worst_step_energy_lost"] = JsonNumber(tensor.worst_step_energy_lost);
  AddHarm(tensor.harm, object);
  AddChannels(tensor.channels, object);
  object["noise"] = tensor.noise();
  object["absmax"] = JsonNumber(tensor.stats.absmax);
  object["first_overflow_step"] = OrNull(tensor.first_overflow_step);
  if (tensor.scales) {
    object["scale"] = {{"min", JsonNumber(tensor.scales->min)},
                       {"max", JsonNumber(tensor.scales->max)},
                       {"final", JsonNumber(tensor.scales->final)}};
  }
  return object;
}

Json JsonLayer(const LayerLoss& layer) {
  Json object = {{"name", layer.name}, {"tensors", layer.tensors}};
  AddHarm(layer.harm, object);
  object["overflow"] = layer.overflow;
  object["first_overflow_step"] = OrNull(layer.first_overflow_step);
  return object;
}

// The values of a member of `items`, one after another.
template <class Items, class Of>
Json Column(const Items& items, Of of) {
  Json column = Json::array();
  for (const auto& item : items) column.push_back(JsonNumber(std::invoke(of, item)));
  return column;
}

// The columns of the map; its rows follow.
Json JsonBins(const HeatMap& map) {
  return {{"first_step", Column(map.bins(), &StepBin::first_step)},
          {"last_step", Column(map.bins(), &StepBin::last_step)},
          {"steps", Column(map.bins(), &StepBin::steps)},
          {"skipped_steps", Column(map.bins(), &StepBin::skipped_steps)}};
}

Json JsonHeatMapRow(const HeatMapRow& row, size_t bins) {
  Json object = {{"name", row.name}, {"role", NameOf(row.role)}};
  const auto cells = std::span(row.cells).first(bins);
  ForEachColumn([&](auto counter, auto columns) {
    if constexpr (columns.kInHeatMap) {
      object[columns.kNames.heat_map] = Column(cells, counter.kRow.of);
    }
  });
  return object;
}

void WriteRun(const SimulationRun& run, JsonStream& json) {
  Json head;
  if (!run.config.empty()) head["config"] = run.config;
  head["format"] = run.format;
  head["policy"] = run.policy;
  head["params"] = JsonFields(run.parameters);
  head["finite_test"] = NameOf(run.rules.finite_test);
  head["notes"] = run.notes;
  if (run.resume) {
    head["resume"] = {{"at_step", run.resume->at_step},
                      {"kept", NameOf(run.resume->kept)},
                      {"first_difference", OrNull(run.first_difference)}};
  }
  head["summary"] = JsonSummary(run);
  json.BeginObject();
  json.Members(head);
  json.Array("events", run.result.events, JsonEvent);
  const Clipping clipping = run.start ? run.start->clipping : Clipping();
  json.Array("steps", run.result.steps,
             [&](const ReplayStep& step) { return JsonStep(step, clipping); });
  json.BeginArray("tensors");
  for (const ReplayTensor& tensor : run.result.tensors) json.Item(JsonTensor(tensor));
  for (const ReplayTensor& tensor : run.result.forward.tensors) json.Item(JsonTensor(tensor));
  json.EndArray();
  json.Array("layers", LayerLosses(run.result.tensors), JsonLayer);
  if (run.heat_map) {
    json.BeginObject("heat_map");
    json.Member("bins", JsonBins(*run.heat_map));
    json.Array("tensors", run.heat_map->rows(),
               [bins = run.heat_map->bins().size()](const HeatMapRow& row) {
                 return JsonHeatMapRow(row, bins);
               });
    json.EndObject();
  }
  json.EndObject();
}

}  // namespace

void AddPath(const PathSummary& path, const std::optional<int64_t>& stopped_at, Json& object) {
  object["steps"] = path.steps;
  object["skipped_steps"] = path.skipped_steps;
  object["longest_skip_run"] = path.longest_skip_run;
  object["nonfinite_steps"] = path.nonfinite_steps;
  object["hopeless_steps"] = path.hopeless_steps;
  object["first_applied_step"] = OrNull(path.first_applied_step);
  object["stopped_at_step"] = OrNull(stopped_at);
  // A policy that refused its parameters has no scale.
  const auto scale = [&](double value) { return path.steps == 0 ? Json() : JsonNumber(value); };
  object["final_scale"] = scale(path.final_scale);
  object["min_scale"] = scale(path.min_scale);
  object["max_scale"] = scale(path.max_scale);
}

Json JsonSummary(const SimulationRun& run) {
  const ReplayResult& result = run.result;
  const ReplaySummary& summary = result.summary;
  Json object;
  AddPath(summary, result.stopped_at, object);
  AddCounters(summary.gradients, object);
  if (run.start) AddClipping(summary, run.start->clipping, object);
  object["worst_step_energy_lost"] = JsonNumber(summary.worst_step_energy_lost);
  AddHarm(summary.harm, object);
  Json& activations = object["activations"];
  AddCounters(summary.activations, activations);
  AddHarm(summary.activation_harm, activations);
  AddCounters(result.forward.outputs, object["forward"]);
  AddCounters(result.forward.values, object["values"]);
  return object;
}

void WriteReplayJson(const SourceFacts& facts, std::span<const std::string> paths,
                     const Json& options, const Json& verdict, const Json& expectations,
                     std::span<const SimulationRun> runs, OutputFile& out) {
  JsonStream json("dlsim.replay/1", JsonTrace(facts, paths), options, out);
  json.Member("verdict", verdict);
  if (!expectations.is_null()) json.Member("expectations", expectations);
  json.BeginArray("runs");
  for (const SimulationRun& run : runs) WriteRun(run, json);
  json.EndArray();
  json.Finish();
}

}  // namespace dlsim::sim
