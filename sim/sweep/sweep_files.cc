// SPDX-License-Identifier: Apache-2.0
// The results of a sweep for programs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/advice/advice_text.h"
#include "sim/base/counter_columns.h"
#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
#include "sim/base/source_text.h"
#include "sim/replay/replay_json.h"
#include "sim/sweep/sweep_output.h"

namespace dlsim::sim {
namespace {

// Position of each axis's key among the distinct keys.
std::vector<size_t> KeyPositions(const SweepGrid& grid, std::vector<std::string>& keys) {
  std::vector<size_t> positions;
  for (const SweepAxis& axis : grid.axes) {
    const auto found = std::ranges::find(keys, axis.key);
    positions.push_back(static_cast<size_t>(found - keys.begin()));
    if (found == keys.end()) keys.push_back(axis.key);
  }
  return positions;
}

Json Summary(const SweepOutcome& o) {
  Json object;
  AddPath(o, o.fatal ? std::optional(o.fatal->step) : std::nullopt, object);
  AddCounters(o.gradients, object);
  object["worst_step_energy_lost"] = JsonNumber(o.worst_step_energy_lost);
  object["mean_energy_lost"] = JsonNumber(o.mean_energy_lost);
  object["mean_energy_lost_low"] = JsonNumber(o.energy_bracket.low);
  object["mean_energy_lost_high"] = JsonNumber(o.energy_bracket.high);
  object["exact"] = o.exact;
  object["steps_below_window"] = o.mean_loss ? Json(o.steps_below_window) : Json();
  object["steps_with_headroom"] = o.mean_loss ? Json(o.steps_with_headroom) : Json();
  object["mean_loss"] = o.mean_loss ? Json(*o.mean_loss) : Json();
  return object;
}

// The keys of Summary that are columns of CSV.
std::vector<std::string> Columns() {
  std::vector<std::string> columns = {"steps",           "skipped_steps",    "nonfinite_steps",
                                      "hopeless_steps",  "longest_skip_run", "first_applied_step",
                                      "stopped_at_step", "final_scale",      "min_scale",
                                      "max_scale"};
  ForEachColumn([&](auto, auto counter) {
    if constexpr (counter.kInJson && counter.kInCsv) columns.push_back(counter.kNames.json);
  });
  for (const char* key : {"worst_step_energy_lost", "mean_energy_lost", "mean_energy_lost_low",
                          "mean_energy_lost_high", "exact", "steps_below_window", "mean_loss",
                          "steps_with_headroom"}) {
    columns.push_back(key);
  }
  return columns;
}

std::string CsvValue(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  return value.dump();
}

Json JsonRun(const SweepResult& result, size_t run) {
  const GridPoint& point = result.plan.points[run];
  Json object;
  object["format"] = result.plan.formats[point.format].name;
  object["policy"] = point.policy->name;
  object["rounding"] = result.setup.grid.roundings[point.rounding];
  object["params"] = JsonFields(AllParameters(result.setup, result.plan, point));
  object["summary"] = Summary(result.outcomes[run]);
  return object;
}

// The verdict where values are rounded as the grid says first; null if none was made.
void WriteVerdicts(const SweepResult& result, JsonStream& json) {
  Json others = Json::array(), first;
  for (const SweepAdvice& verdict : result.verdicts) {
    Json object = JsonAdvice(verdict.advice);
    object["rounding"] = NameOf(verdict.rounding);
    (first.is_null() ? first : others.emplace_back()) = std::move(object);
  }
  json.Member("verdict", first);
  if (!others.empty()) json.Member("verdicts_of_other_roundings", others);
}

}  // namespace

std::vector<std::string> AxisKeys(const SweepGrid& grid) {
  std::vector<std::string> keys;
  KeyPositions(grid, keys);
  return keys;
}

std::vector<std::string> ValuesAt(const SweepGrid& grid, const GridPoint& point) {
  std::vector<std::string> keys;
  const std::vector<size_t> positions = KeyPositions(grid, keys);
  std::vector<std::string> values(keys.size());
  for (size_t a = 0; a < positions.size(); ++a) {
    if (!point.values[a].empty()) values[positions[a]] = point.values[a];
  }
  return values;
}

void WriteSweepJson(const SourceFacts& facts, std::span<const std::string> paths,
                    const Json& options, const SweepResult& result, OutputFile& out) {
  JsonStream json("dlsim.sweep/1", JsonTrace(facts, paths), options, out);
  WriteVerdicts(result, json);
  json.BeginArray("runs");
  for (size_t run = 0; run < result.outcomes.size(); ++run) json.Item(JsonRun(result, run));
  json.EndArray();
  Json refused = Json::array();
  for (const RefusedPoints& points : result.plan.refused) {
    refused.push_back(
        {{"policy", points.policy}, {"reason", points.reason}, {"count", points.count}});
  }
  json.Member("pareto", result.pareto);
  json.Member("refused", refused);
  json.Finish();
}

void WriteSweepCsv(const SweepResult& result, OutputFile& out) {
  std::string header = "run,format,policy,rounding";
  for (const std::string& key : AxisKeys(result.setup.grid)) header += "," + CsvField(key);
  const std::vector<std::string> columns = Columns();
  for (const std::string& column : columns) header += "," + column;
  out.Write(header + "\n");
  for (size_t run = 0; run < result.outcomes.size(); ++run) {
    const GridPoint& point = result.plan.points[run];
    std::string row = fmt::format("{},{},{},{}", run, result.plan.formats[point.format].name,
                                  point.policy->name, result.setup.grid.roundings[point.rounding]);
    for (const std::string& value : ValuesAt(result.setup.grid, point)) {
      row += "," + CsvField(value);
    }
    const Json summary = Summary(result.outcomes[run]);
    for (const std::string& column : columns) row += "," + CsvValue(summary[column]);
    out.Write(row + "\n");
  }
}

}  // namespace dlsim::sim
