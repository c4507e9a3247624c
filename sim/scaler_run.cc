// SPDX-License-Identifier: Apache-2.0
#include "sim/scaler_run.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "sim/number.h"
#include "sim/output/json_value.h"

namespace dlsim {
namespace {

// A scaler that reports an event at every step must not fill the memory.
constexpr size_t kMaxEvents = 100000;

void AppendScale(double scale, std::vector<ScaleRun>& runs) {
  // By bits: a NaN continues a run of itself, and zeros of both signs stay apart.
  const bool same =
      !runs.empty() && std::bit_cast<uint64_t>(runs.back().scale) == std::bit_cast<uint64_t>(scale);
  if (same) {
    ++runs.back().count;
  } else {
    runs.push_back({scale, 1});
  }
}

std::string ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  // read() reports a failure such as "is a directory" as badbit; stream iterators throw it.
  std::string text;
  char buffer[4096];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {
    const std::string why = errno != 0 ? ": " + std::string(std::strerror(errno)) : "";
    throw InputError(Printable(path), "cannot be read" + why);
  }
  return text;
}

std::vector<int64_t> ParseSteps(std::string_view text, std::string_view place) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<int64_t> steps;
  for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string_view token = text.substr(begin, end - begin);
    const int64_t step = ParseInteger(token, place);
    if (step < 0) throw UsageError(place, "not a step", "0 or more", Quoted(token));
    steps.push_back(step);
    begin = text.find_first_not_of(kSeparators, end);
  }
  std::ranges::sort(steps);
  const auto repeats = std::ranges::unique(steps);
  steps.erase(repeats.begin(), repeats.end());
  return steps;
}

}  // namespace

ScalerRun RunScaler(ConfiguredScaler configured, int64_t steps,
                    std::span<const int64_t> overflow_steps, OnFatal on_fatal) {
  LossScaler scaler = std::move(configured.scaler);
  ScalerRun run;
  run.parameters = std::move(configured.parameters);
  run.scale_init = scaler.scale();
  auto next_overflow = std::ranges::lower_bound(overflow_steps, 0);
  bool stopped = false;
  while (run.steps_run < steps && !stopped) {
    const int64_t step = run.steps_run++;
    const bool overflow = next_overflow != overflow_steps.end() && *next_overflow == step;
    if (overflow) ++next_overflow;
    ScalerDecision decision = scaler.Next({.overflow = overflow});
    AppendScale(scaler.scale(), run.scale);
    if (decision.skip) run.skipped.push_back(step);
    if (!decision.event) continue;
    stopped = decision.event->fatal && on_fatal == OnFatal::kStop;
    if (++run.event_count <= kMaxEvents) run.events.push_back(std::move(*decision.event));
  }
  run.state = scaler.Describe();
  return run;
}

ScalerRun RefusedRun(const PolicyRefusal& refusal) {
  ScalerRun run;
  run.parameters = refusal.parameters;
  run.event_count = 1;
  run.events.push_back(
      {.step = -1, .type = refusal.type, .message = refusal.message, .fatal = true, .details = {}});
  return run;
}

Json ToJson(std::string_view policy, const ScalerRun& run) {
  Json scale = Json::array();
  for (const ScaleRun& part : run.scale) {
    scale.push_back(Json::array({HexFloat(part.scale), part.count}));
  }
  Json events = Json::array();
  for (const ScalerEvent& event : run.events) events.push_back(JsonEvent(event));
  if (run.event_count > run.events.size()) {
    events.push_back({{"truncated_total", run.event_count}});
  }
  Json document = Json::object();
  document["schema"] = "dlsim.scaler/1";
  document["policy"] = policy;
  document["params"] = JsonFields(run.parameters);
  document["scale_init"] = run.scale_init ? Json(HexFloat(*run.scale_init)) : Json(nullptr);
  document["scale"] = std::move(scale);
  document["skipped"] = run.skipped;
  document["events"] = std::move(events);
  document["state"] = JsonFields(run.state);
  return document;
}

std::vector<int64_t> ParseOverflowList(std::string_view text) {
  if (!text.starts_with('@')) return ParseSteps(text, "--overflow-at");
  const std::string path(text.substr(1));
  return ParseSteps(ReadFile(path), Printable(path));
}

}  // namespace dlsim
