// SPDX-License-Identifier: Apache-2.0
#include "sim/app/scaler_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/base/shared_rows.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

// A scaler that reports an event at every step must not fill the memory.
constexpr size_t kMaxEvents = 100000;

constexpr int64_t kStepsPerCheck = 4096;

ScalerInput InputOfStep(bool overflow, size_t step, const StepSignals& signals) {
  ScalerInput input = {.overflow = overflow};
  if (step < signals.absmax.size()) input.absmax = signals.absmax[step];
  if (!std::isfinite(input.absmax)) input.overflow = true;
  if (input.overflow) input.absmax = std::numeric_limits<float>::infinity();
  if (step < signals.histogram.size()) {
    input.below_edge = signals.histogram[step].below;
    input.above_edge = signals.histogram[step].above;
  }
  return input;
}

enum class Use { kNeeded, kIgnored };

// Checks one list of signals; `what` is what it holds one of per step.
void CheckSignal(const char* option, const char* what, Use use, size_t count, int64_t steps,
                 std::string_view policy, std::vector<std::string>& notes) {
  const size_t needed = static_cast<size_t>(steps);
  const std::string name(policy);
  if (use == Use::kIgnored && count > 0) {
    notes.push_back(std::string(option) + ": " + name + " does not use it");
  }
  if (use == Use::kNeeded && count == 0 && needed > 0) {
    throw UsageError(option, "missing", std::string("one ") + what + " per step for " + name);
  }
  if (count > 0 && count < needed) {
    throw UsageError(option, "too few entries", std::to_string(needed) + ", one per step",
                     std::to_string(count));
  }
  if (count > needed) {
    notes.push_back(std::string(option) + ": entries from " + std::to_string(needed) +
                    " on have no effect");
  }
}

}  // namespace

ScalerRun RunScaler(ConfiguredScaler configured, int64_t steps,
                    std::span<const int64_t> overflow_steps, OnFatal on_fatal,
                    const StepSignals& signals, const std::optional<Resume>& resume) {
  LossScaler scaler = std::move(configured.scaler);
  const LossScaler initial = configured.initial.value_or(scaler);
  ScalerRun run;
  run.parameters = std::move(configured.parameters);
  run.scale_init = scaler.scale();
  auto next_overflow = std::ranges::lower_bound(overflow_steps, 0);
  bool stopped = false;
  while (run.steps_run < steps && !stopped) {
    const int64_t step = run.steps_run++;
    if (step % kStepsPerCheck == 0) CurrentCaller().CheckCanceled();
    const bool overflow = next_overflow != overflow_steps.end() && *next_overflow == step;
    if (overflow) ++next_overflow;
    if (resume && step == resume->at_step) ResumeFrom(resume->kept, initial, scaler);
    ScalerDecision decision =
        scaler.Next(InputOfStep(overflow, static_cast<size_t>(step), signals));
    // By bits: a NaN continues a run of itself, and zeros of both signs stay apart.
    const double scale = scaler.scale();
    const bool same = !run.scale.empty() && std::bit_cast<uint64_t>(run.scale.back().scale) ==
                                                std::bit_cast<uint64_t>(scale);
    if (same) {
      ++run.scale.back().count;
    } else {
      run.scale.push_back({scale, 1});
    }
    if (decision.skip) run.skipped.push_back(step);
    if (!decision.event) continue;
    stopped = decision.event->fatal && on_fatal == OnFatal::kStop;
    if (++run.event_count <= kMaxEvents) run.events.push_back(std::move(*decision.event));
  }
  run.state = scaler.Describe();
  return run;
}

std::optional<int64_t> FirstDifference(const ScalerRun& whole, const ScalerRun& interrupted) {
  std::optional<int64_t> first;
  const auto note = [&](int64_t step) { first = std::min(first.value_or(step), step); };
  // Both paths are lists of runs of one scale.
  int64_t step = 0;
  size_t a = 0, b = 0;
  int64_t rest_a = 0, rest_b = 0;  // steps left of the current runs
  while (true) {
    if (rest_a == 0 && a < whole.scale.size()) rest_a = whole.scale[a++].count;
    if (rest_b == 0 && b < interrupted.scale.size()) rest_b = interrupted.scale[b++].count;
    if (rest_a == 0 && rest_b == 0) break;
    const bool same =
        rest_a > 0 && rest_b > 0 &&
        HexFloat(whole.scale[a - 1].scale) == HexFloat(interrupted.scale[b - 1].scale);
    if (!same) {
      note(step);
      break;
    }
    const int64_t common = std::min(rest_a, rest_b);
    step += common;
    rest_a -= common;
    rest_b -= common;
  }
  const auto [x, y] = std::ranges::mismatch(whole.skipped, interrupted.skipped);
  if (x != whole.skipped.end()) note(*x);
  if (y != interrupted.skipped.end()) note(*y);
  return first;
}

void CheckSignals(std::string_view policy, const LossScaler& scaler, int64_t steps,
                  const StepSignals& signals, std::vector<std::string>& notes) {
  if (scaler.looks_ahead()) {
    throw UsageError("--policy", std::string(policy) + " sets its factor from each gradient",
                     "a trace: dlsim replay");
  }
  const auto use = [](bool needed) { return needed ? Use::kNeeded : Use::kIgnored; };
  CheckSignal("--absmax", "magnitude", use(scaler.uses_absmax()), signals.absmax.size(), steps,
              policy, notes);
  CheckSignal("--histogram", "pair of counts", use(scaler.histogram_edge().has_value()),
              signals.histogram.size(), steps, policy, notes);
}

ScalerRun RefusedRun(const PolicyRefusal& refusal) {
  ScalerRun run;
  run.parameters = refusal.parameters;
  run.event_count = 1;
  run.events.push_back(
      {.step = -1, .type = refusal.type, .message = refusal.message, .fatal = true, .details = {}});
  return run;
}

inline auto ShownAs(const ScaleRun& part) { return std::pair(HexFloat(part.scale), part.count); }

// The last of the events if there are too many.
struct Truncated {
  uint64_t total = 0;
};

inline void Rows(const Truncated& of, RowSink& row) { row("truncated_total", of.total); }

inline void Rows(const ScalerRun& of, RowSink& row) {
  row("scale", of.scale,
      "pairs [scale, count]: for how many steps in a row the scale after the step was this");
  row("skipped", of.skipped, "steps, from 0, on which the optimizer does not step");
  std::vector<std::variant<const ScalerEvent*, Truncated>> events;
  for (const ScalerEvent& event : of.events) events.emplace_back(&event);
  if (of.event_count > of.events.size()) events.emplace_back(Truncated{of.event_count});
  row("events", events,
      "as in a run of a replay, with steps from 0; after 100,000 a last object "
      "`{\"truncated_total\": N}` counts them all");
  row("state", of.state, "the policy's counters after the last step, under the original's names");
}

inline void Rows(const ScalerTwin& of, RowSink& row) {
  row("at_step", of.at_step, "before which the run is interrupted");
  row("kept", of.kept, "`scale` or `nothing`: what the checkpoint holds");
  row("first_difference", of.first_difference,
      "the first step with another scale or skip than the whole run; null if none");
  row.Group(of.run);
}

TellRows RowsOf(std::string_view policy, const ScalerRun& run, std::span<const ScalerTwin> twins,
                const TellRows& config) {
  return [policy, &run, twins, config](RowSink& row) {
    row("schema", "dlsim.scaler/1");
    row("policy", policy, "canonical name");
    row("params", run.parameters, "all parameters, with defaults");
    row("scale_init", run.scale_init ? std::optional(HexFloat(*run.scale_init)) : std::nullopt,
        "scale of step 0; null if the policy refused");
    row.Group(run);
    row("resume", twins, "with --resume-at: one object per interrupted run", kLeftOutIfEmpty);
    row("config", config, "with `--config` only: as `options.config` of a replay", kLeftOutIfEmpty);
  };
}

void AddScalerKeys(std::vector<KeyTable>& tables) { AddKeys("", RowsOf("", ScalerRun()), tables); }

namespace {

constexpr size_t kMaxListBytes = size_t{1} << 28;

// Calls parse(entry, place) for each entry of the option's value or of the file that it names.
template <class Parse>
void ForEachEntry(std::string_view value, std::string_view option, const Parse& parse) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  const bool in_file = value.starts_with('@');
  const std::string path(in_file ? value.substr(1) : "");
  const std::string text = in_file ? ReadTextInput(path, kMaxListBytes) : std::string(value);
  const std::string place = in_file ? Printable(path) : std::string(option);
  for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    parse(std::string_view(text).substr(begin, end - begin), std::string_view(place));
    begin = text.find_first_not_of(kSeparators, end);
  }
}

uint64_t ParseCount(std::string_view text, std::string_view entry, std::string_view place) {
  const int64_t count = ParseInteger(text, place);
  if (count < 0) throw UsageError(place, "negative count", "0 or more", Quoted(entry));
  return static_cast<uint64_t>(count);
}

float ParseMagnitude(std::string_view entry, std::string_view place) {
  if (entry == "inf") return std::numeric_limits<float>::infinity();
  if (entry == "nan") return std::numeric_limits<float>::quiet_NaN();
  const double magnitude = ParseNumber(entry, place);
  if (magnitude >= 0) return static_cast<float>(magnitude);
  throw UsageError(place, "not a magnitude", "0 or more, or inf", Quoted(entry));
}

}  // namespace

std::vector<int64_t> ParseOverflowList(std::string_view text) {
  std::vector<int64_t> steps;
  ForEachEntry(text, "--overflow-at", [&](std::string_view entry, std::string_view place) {
    const int64_t step = ParseInteger(entry, place);
    if (step < 0) throw UsageError(place, "not a step", "0 or more", Quoted(entry));
    steps.push_back(step);
  });
  std::ranges::sort(steps);
  const auto repeats = std::ranges::unique(steps);
  steps.erase(repeats.begin(), repeats.end());
  return steps;
}

std::vector<float> ParseMagnitudeList(std::string_view text) {
  std::vector<float> magnitudes;
  ForEachEntry(text, "--absmax", [&](std::string_view entry, std::string_view place) {
    magnitudes.push_back(ParseMagnitude(entry, place));
  });
  return magnitudes;
}

std::vector<HistogramCounts> ParseHistogramList(std::string_view text) {
  std::vector<HistogramCounts> histogram;
  ForEachEntry(text, "--histogram", [&](std::string_view entry, std::string_view place) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      throw UsageError(place, "not a pair of counts", "BELOW:ABOVE", Quoted(entry));
    }
    histogram.push_back({ParseCount(entry.substr(0, colon), entry, place),
                         ParseCount(entry.substr(colon + 1), entry, place)});
  });
  return histogram;
}

}  // namespace dlsim::sim
